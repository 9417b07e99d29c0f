"""The store interface: the part of ZooKeeper that the rest of the project uses, with the sizes of operations, because
ZooKeeper drops the connection if a request is too large.

There are two implementations: the one in :mod:`kafka_coord.zk.session`, which uses kazoo, and a simulated ZooKeeper
under a seeded scheduler. Everything that decides (election, handler, executor, connector) uses only :class:`Store`,
runs on its owner's thread, and never sees kazoo.

Every call has a deadline. A refusal (:class:`~kafka_coord.errors.NoNode`, ``BadVersion``, …) is a fact.
:class:`~kafka_coord.errors.StoreUnavailable` means that the outcome is **unknown** and must be read back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from kafka_coord.errors import NodeExists

ANY_VERSION = -1


class Clock(Protocol):
    """An injectable clock for the code around the pure decisions, which take the time as an argument."""

    def monotonic(self) -> float:
        """Returns the seconds since an arbitrary moment. Never goes backwards."""

    def time(self) -> float:
        """Returns the seconds since 1970 (wall clock), for timestamps shown to humans."""


@dataclass(frozen=True, slots=True)
class Stat:
    """ZooKeeper's stat of a znode (times in ms since 1970, ids are zxids)."""

    czxid: int
    mzxid: int
    version: int
    cversion: int
    ctime_ms: int
    mtime_ms: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int


@dataclass(frozen=True, slots=True)
class Node:
    """A znode's data and stat, from one read."""

    data: bytes
    stat: Stat


@dataclass(frozen=True, slots=True)
class Listing:
    """A znode's sorted child names and its stat. If a child was deleted and created again, the names are the same, but
    ``stat.cversion`` differs."""

    names: tuple[str, ...]
    stat: Stat


# --- operations of a multi ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Check:
    """Makes the multi fail unless the znode exists with this data version. ``ANY_VERSION`` matches any version."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Create:
    """Creates a znode. With ``sequence``, ZooKeeper appends ten digits to the path. The parent must exist."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Replaces a znode's data."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes a znode without children."""

    path: str
    version: int = ANY_VERSION


Op = Check | Create | SetData | Delete
OpResult = str | Stat | None
"""The result is the created path for ``Create``, the new stat for ``SetData``, and ``None`` for other operations."""


# --- reads of a multi-read ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GetData:
    path: str


@dataclass(frozen=True, slots=True)
class GetChildren:
    path: str


Read = GetData | GetChildren
ReadResult = Node | tuple[str, ...] | None
"""The result is a :class:`Node` for ``GetData``, sorted names for ``GetChildren``, and ``None`` for a missing znode."""


class Armed(NamedTuple):
    """The results of :meth:`Store.arm`, each list in the order of the request."""

    listings: tuple[Listing | None, ...]
    stats: tuple[Stat | None, ...]
    answers: tuple[ReadResult, ...] = ()


# --- watches and session -----------------------------------------------------------------------------------------


class WatchType(Enum):
    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILD = "child"
    CONNECTION = "connection"
    """The connection or session has changed, so the watch is gone. Read again and set a new watch."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """An event from the watch on ``path``."""

    type: WatchType
    path: str


Watcher = Callable[[WatchEvent], None]
"""Called once, on one of the store's threads. It may only record the event and wake its owner."""


class SessionState(Enum):
    CONNECTING = "connecting"
    """The client has not connected yet since it started, or since the last session was lost."""
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """The connection is gone. The session may still exist, or it may already have ended on the server."""
    LOST = "lost"
    """The session has ended. A new session begins automatically (:attr:`CONNECTED` with a different id)."""
    CLOSED = "closed"


class Session(Protocol):
    """A read-only view of the session. Thread-safe, and never needs a round trip."""

    @property
    def state(self) -> SessionState: ...

    @property
    def session_id(self) -> int:
        """The server's session id, or 0 without a session."""

    @property
    def timeout_ms(self) -> int:
        """The negotiated session timeout."""

    def lease_deadline(self) -> float:
        """Returns the (monotonic) time until which this session is certain to last, or 0.0 if there is no lease.

        The ZooKeeper leader has counted a request that this session *sent* at some time s, so the session cannot end
        before s + timeout. The deadline is s + timeout minus a safety margin (:mod:`kafka_coord.zk.kazoo_session`). It
        holds even without further responses, so a client that acts only before the deadline never acts after its
        session has ended. The state also shows the end of a session, but sometimes much later.
        """

    def lease_began(self) -> float:
        """Returns the (monotonic) time at which the lease last began, or began again after it had ended. What was read
        before may be out of date."""


SessionListener = Callable[[SessionState], None]
"""Called whenever the state changes, on one of the store's threads. It may only record the state and wake its owner."""


class Store(Protocol):
    """ZooKeeper, below the chroot. Paths are absolute. Thread-safe. Raises the errors defined in
    :mod:`kafka_coord.errors`."""

    @property
    def clock(self) -> Clock: ...

    @property
    def session(self) -> Session: ...

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        """Registers a session listener. The returned callable removes it."""

    def get(self, path: str, watcher: Watcher | None = None) -> Node:
        """Returns the data and the stat. Raises ``NoNode``, without setting a watch."""

    def children(self, path: str, watcher: Watcher | None = None) -> tuple[str, ...]:
        """Returns the sorted child names. Raises ``NoNode``, without setting a watch."""

    def exists(self, path: str, watcher: Watcher | None = None) -> Stat | None:
        """Returns the stat, or ``None`` for a missing znode. Sets the watch in either case."""

    def exists_many(self, paths: Sequence[str], watcher: Watcher | None = None) -> tuple[Stat | None, ...]:
        """Like :meth:`exists`, but for many paths, pipelined in one round trip."""

    def children_many(self, paths: Sequence[str], watcher: Watcher | None = None) -> tuple[Listing | None, ...]:
        """Like :meth:`children`, but for many paths, pipelined, with stats. For a missing znode, returns ``None`` and
        does not set a watch."""

    def arm(self, children: Sequence[str], data: Sequence[str], watcher: Watcher, reads: Sequence[Read] = ()) -> Armed:
        """Does the work of ``children_many(children, watcher)``, ``exists_many(data, watcher)`` and
        ``read_many(reads)``, in one round trip if possible. ``reads`` are not watched."""
        listings = self.children_many(children, watcher) if children else ()
        stats = self.exists_many(data, watcher) if data else ()
        return Armed(listings, stats, self.read_many(reads) if reads else ())

    def watch_gone(self, paths: Sequence[str], watcher: Watcher) -> None:
        """Notifies ``watcher`` of the deletion of each znode in ``paths``, or immediately if the znode is already
        gone."""
        for path, stat in zip(paths, self.exists_many(paths, watcher), strict=True):
            if stat is None:
                watcher(WatchEvent(WatchType.DELETED, path))

    def follow(self, path: str, watcher: Watcher) -> bool:
        """Notifies ``watcher`` whenever ``path``, or a znode directly below it, is created (``CREATED``) or deleted
        (``DELETED``), until the connection breaks (``CONNECTION``). Sends a single request. Returns false if the server
        does not support this request, which is new in ZooKeeper 3.6. In that case, the only event that ``watcher`` may
        receive is ``CONNECTION``.
        """
        del path, watcher
        return False

    def unfollow(self, path: str, watcher: Watcher) -> None:
        """Ends :meth:`follow`. ``watcher`` no longer receives events for ``path``."""
        del path, watcher

    def read_many(self, reads: Sequence[Read]) -> tuple[ReadResult, ...]:
        """Reads many znodes at once, with one multi-read per chunk on servers ≥ 3.6, and with pipelined reads on older
        servers."""

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        """Creates one znode and returns its path. Raises ``NodeExists``, or ``NoNode`` if the parent is missing."""

    def ensure_path(self, path: str) -> None:
        """Creates the znode and its missing parents as persistent, empty znodes."""
        missing: list[str] = []
        at = path
        while at != "/" and self.exists(at) is None:
            missing.append(at)
            at = at.rpartition("/")[0] or "/"
        for at in reversed(missing):
            try:
                self.create(at)
            except NodeExists:
                continue

    @property
    def acl_bytes(self) -> int:
        """The size in bytes of the longest ACL that a create may carry, for estimates."""
        return 64

    def ensure_prepared(self) -> None:
        """Creates the znodes that clients need but, under the ACL plan, are not allowed to create. Does nothing without
        a plan."""
        return

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        """Replaces the data and returns the new stat. Raises ``NoNode`` and ``BadVersion``."""

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Deletes one znode. Raises ``NoNode``, ``BadVersion`` and ``NotEmpty``."""

    def multi(self, ops: Sequence[Op]) -> tuple[OpResult, ...]:
        """Runs all operations or none of them and returns their results. Raises ``MultiFailed``, which names the
        operation at fault, or ``RequestTooLarge``."""

    def sync(self, path: str = "/") -> None:
        """Returns once this server has caught up with the leader."""

    def close(self) -> None:
        """Ends the session, which deletes its ephemeral znodes immediately. Safe to call twice."""


HEADER = 8
"""The size in bytes of the xid and the type that precede every request."""
_MULTI_HEADER = 9
_INT = 4
_VERBS: Mapping[type[Op], str] = {Check: "check", Create: "create", SetData: "set", Delete: "delete"}


def op_size(op: Op, path_prefix: int = 0, acl: int = 64) -> int:
    """Returns the size in bytes of one operation of a multi. ``path_prefix`` is the length of the chroot, and ``acl``
    is the size of the ACL."""
    size = _MULTI_HEADER + _INT + path_prefix + len(op.path.encode()) + _INT
    if isinstance(op, Create):
        return size + _INT + len(op.data) + acl
    if isinstance(op, SetData):
        return size + _INT + len(op.data)
    return size


def described(ops: Sequence[Op]) -> str:
    """Describes a multi for use in messages, such as ``multi of 3 operations (check /a, set /b, …)``."""
    shown = ", ".join(f"{_VERBS[type(op)]} {op.path}" for op in ops[:3])
    more = ", …" if len(ops) > 3 else ""
    return f"multi of {len(ops)} operations ({shown}{more})"
