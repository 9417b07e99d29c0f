"""ZooKeeper's tree: a leader that orders writes, and followers that apply them later and serve reads and watches.

The semantics are those that clients of a real server see (``PrepRequestProcessor``, ``DataTree``, ``WatchManager``):
one zxid per transaction; sequence numbers that count the creations below a parent; a ``cversion`` that counts creations
and deletions; one-shot watches kept by the server to which a session is connected.
``tests/simulation/test_differential.py`` compares them with a real server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kafka_coord.errors import BadVersion, MultiFailed, NodeExists, NoNode, NotEmpty, StoreError
from kafka_coord.zk.store import (
    ANY_VERSION,
    Check,
    Create,
    Listing,
    Node,
    Op,
    OpResult,
    SetData,
    Stat,
    Watcher,
    WatchEvent,
    WatchType,
)


@dataclass(slots=True)
class Znode:
    """A znode on one server. ``creations`` counts all children ever created, so it is the next sequence number."""

    data: bytes
    czxid: int
    mzxid: int
    pzxid: int
    ctime_ms: int
    mtime_ms: int
    owner: int = 0
    version: int = 0
    creations: int = 0
    children: set[str] = field(default_factory=set)
    shown: Stat | None = None
    """The cached stat. A znode is read far more often than it is written."""

    def stat(self) -> Stat:
        if self.shown is not None:
            return self.shown
        self.shown = Stat(
            czxid=self.czxid,
            mzxid=self.mzxid,
            version=self.version,
            cversion=self.creations * 2 - len(self.children),
            ctime_ms=self.ctime_ms,
            mtime_ms=self.mtime_ms,
            ephemeral_owner=self.owner,
            data_length=len(self.data),
            num_children=len(self.children),
            pzxid=self.pzxid,
        )
        return self.shown


@dataclass(frozen=True, slots=True)
class Change:
    """One resolved change of a transaction: sequence numbers are assigned, versions are checked."""

    kind: WatchType
    """``CREATED``, ``DELETED`` or ``CHANGED``."""
    path: str
    data: bytes = b""
    owner: int = 0
    before: Znode | None = None
    """The znode before the change, for the checks of a deletion."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """The effect of one write. ``session`` is its sender, or 0. ``ops`` are its operations, and empty for the end of a
    session."""

    zxid: int
    time_ms: int
    session: int
    ops: tuple[Op, ...]
    changes: tuple[Change, ...]


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class Tree:
    """One server's copy of the tree, changed by transactions in their order."""

    def __init__(self) -> None:
        self.nodes: dict[str, Znode] = {"/": Znode(b"", 0, 0, 0, 0, 0)}
        self.applied = 0

    def apply(self, transaction: Transaction) -> None:
        for change in transaction.changes:
            self.change(change, transaction.zxid, transaction.time_ms)
        self.applied += 1

    def change(self, change: Change, zxid: int, time_ms: int) -> None:
        nodes, path = self.nodes, change.path
        if change.kind is WatchType.CREATED:
            nodes[path] = Znode(change.data, zxid, zxid, zxid, time_ms, time_ms, change.owner)
            parent = nodes[parent_of(path)]
            parent.children.add(path.rpartition("/")[2])
            parent.creations += 1
            parent.pzxid = zxid
            parent.shown = None
        elif change.kind is WatchType.DELETED:
            del nodes[path]
            parent = nodes[parent_of(path)]
            parent.children.discard(path.rpartition("/")[2])
            parent.pzxid = zxid
            parent.shown = None
        else:
            node = nodes[path]
            node.data, node.mzxid, node.mtime_ms = change.data, zxid, time_ms
            node.version += 1
            node.shown = None

    def get(self, path: str) -> Node:
        node = self.node(path, "get")
        return Node(node.data, node.stat())

    def listing(self, path: str) -> Listing:
        node = self.node(path, "get children of")
        return Listing(tuple(sorted(node.children)), node.stat())

    def stat(self, path: str) -> Stat | None:
        node = self.nodes.get(path)
        return node.stat() if node is not None else None

    def node(self, path: str, doing: str) -> Znode:
        node = self.nodes.get(path)
        if node is None:
            raise NoNode(f"{doing} {path}: there is no such znode", path)
        return node


@dataclass(slots=True)
class ServerSession:
    """The leader's view of a session, with the waiting notifications for its client in order."""

    session_id: int
    timeout_s: float
    heard_at: float
    ended: bool = False
    outbox: list[tuple[WatchEvent, tuple[Watcher, ...]]] = field(default_factory=list)


class Replica(Tree):
    """A server with its sessions. It keeps their watches, and fires them as it applies transactions."""

    def __init__(self) -> None:
        super().__init__()
        self._data: dict[str, dict[int, dict[Watcher, None]]] = {}
        self._child: dict[str, dict[int, dict[Watcher, None]]] = {}
        self._followed: dict[str, dict[int, dict[Watcher, None]]] = {}
        self._sessions: dict[int, ServerSession] = {}

    def connected(self, session: ServerSession) -> None:
        self._sessions[session.session_id] = session

    def disconnected(self, session: ServerSession) -> tuple[tuple[str, Watcher], ...]:
        """Forgets the session's watches, and returns them."""
        self._sessions.pop(session.session_id, None)
        found = []
        for watches in (self._data, self._child, self._followed):
            for path in list(watches):
                watchers = watches[path].pop(session.session_id, {})
                found += [(path, watcher) for watcher in watchers]
                if not watches[path]:
                    del watches[path]
        return tuple(found)

    def watch_data(self, path: str, session_id: int, watcher: Watcher | None) -> None:
        if watcher is not None:
            self._data.setdefault(path, {}).setdefault(session_id, {})[watcher] = None

    def watch_children(self, path: str, session_id: int, watcher: Watcher | None) -> None:
        if watcher is not None:
            self._child.setdefault(path, {}).setdefault(session_id, {})[watcher] = None

    def follow(self, path: str, session_id: int, watcher: Watcher) -> None:
        """Sets a persistent watch on the znode and its children."""
        self._followed.setdefault(path, {}).setdefault(session_id, {})[watcher] = None

    def unfollow(self, path: str, session_id: int, watcher: Watcher) -> None:
        self._followed.get(path, {}).get(session_id, {}).pop(watcher, None)

    def apply(self, transaction: Transaction) -> None:
        Tree.apply(self, transaction)
        for change in transaction.changes:
            self._fire(change.path, change.kind)
            if change.kind is not WatchType.CHANGED:
                self._fire(parent_of(change.path), WatchType.CHILD)

    def _fire(self, path: str, kind: WatchType) -> None:
        told: dict[int, list[Watcher]] = {}
        if kind is not WatchType.CHILD:
            for session_id, watchers in self._data.pop(path, {}).items():
                told.setdefault(session_id, []).extend(watchers)
        if kind in {WatchType.CHILD, WatchType.DELETED}:
            for session_id, watchers in self._child.pop(path, {}).items():
                told.setdefault(session_id, []).extend(watchers)
        if kind in {WatchType.CREATED, WatchType.DELETED}:
            for followed in (path, parent_of(path)):
                for session_id, followers in self._followed.get(followed, {}).items():
                    told.setdefault(session_id, []).extend(followers)
        for session_id, found in told.items():
            session = self._sessions.get(session_id)
            if session is not None:
                session.outbox.append((WatchEvent(kind, path), tuple(found)))


class SimulatedZooKeeper:
    """The leader and its followers. ``observers`` are called with every transaction after the leader has applied it."""

    def __init__(self, replicas: int = 1, first_zxid: int = 0) -> None:
        self.tree = Tree()
        self.can_follow = True
        """Whether it has persistent watches, as ZooKeeper has since 3.6."""
        self.replicas = tuple(Replica() for _ in range(replicas))
        self.log: list[Transaction] = []
        self.sessions: dict[int, ServerSession] = {}
        self.observers: list[Callable[[Transaction], None]] = []
        self.session_changes = 0
        """The number of times that a session began, was resumed or ended. A change invalidates computed times of the
        next event."""
        self._zxid = first_zxid
        self._next_session = 0x100

    # --- sessions ----------------------------------------------------------------------------------------------------

    def open_session(self, timeout_s: float, now: float) -> ServerSession:
        self._next_session += 1
        self.session_changes += 1
        session = ServerSession(self._next_session, timeout_s, now)
        self.sessions[session.session_id] = session
        return session

    def end_session(self, session: ServerSession, time_ms: int) -> None:
        """Deletes the session's ephemerals in one transaction."""
        session.ended = True
        self.session_changes += 1
        mine = sorted(path for path, node in self.tree.nodes.items() if node.owner == session.session_id)
        changes = tuple(Change(WatchType.DELETED, path, before=self.tree.nodes[path]) for path in mine)
        self._zxid += 1
        self._commit(Transaction(self._zxid, time_ms, session.session_id, (), changes), apply=True)

    # --- writes ------------------------------------------------------------------------------------------------------

    def write(self, ops: Sequence[Op], session_id: int, time_ms: int) -> tuple[OpResult, ...]:
        """Applies all operations or none. Raises :class:`MultiFailed` with the index and cause of the first failed
        operation."""
        self._zxid += 1  # a refused request is also a transaction (of type error)
        changes: list[Change] = []
        results: list[OpResult] = []
        undo: list[Callable[[], None]] = []
        last = len(ops) - 1
        for index, op in enumerate(ops):
            try:
                change = self._resolve(op, session_id)
            except StoreError as cause:
                for step in reversed(undo):
                    step()
                raise MultiFailed(
                    f"multi of {len(ops)} failed: operation {index}: {cause}", op.path, index, cause
                ) from None
            if change is not None:
                if index < last:
                    undo.append(self._undo(change))
                self.tree.change(change, self._zxid, time_ms)
                changes.append(change)
            if isinstance(op, Create):
                results.append(change.path if change is not None else "")
            elif isinstance(op, SetData):
                results.append(self.tree.stat(op.path))
            else:
                results.append(None)
        self._commit(Transaction(self._zxid, time_ms, session_id, tuple(ops), tuple(changes)), apply=False)
        return tuple(results)

    def write_one(self, op: Op, session_id: int, time_ms: int) -> OpResult:
        try:
            return self.write((op,), session_id, time_ms)[0]
        except MultiFailed as failure:
            raise failure.cause from None

    def _resolve(self, op: Op, session_id: int) -> Change | None:
        nodes = self.tree.nodes
        if isinstance(op, Create):
            parent = nodes.get(parent_of(op.path))
            if parent is None:
                raise NoNode(f"create {op.path}: no parent", op.path)
            path = f"{op.path}{parent.creations:010d}" if op.sequence else op.path
            if path in nodes:
                raise NodeExists(f"create {path}: the znode already exists", path)
            if parent.owner:
                raise StoreError(f"create {path}: an ephemeral znode cannot have children", path)
            return Change(WatchType.CREATED, path, op.data, session_id if op.ephemeral else 0)
        node = nodes.get(op.path)
        if node is None:
            raise NoNode(f"{type(op).__name__} {op.path}: there is no such znode", op.path)
        if op.version not in (ANY_VERSION, node.version):
            raise BadVersion(f"{type(op).__name__} {op.path}: version {node.version}, not {op.version}", op.path)
        if isinstance(op, Check):
            return None
        if isinstance(op, SetData):
            return Change(WatchType.CHANGED, op.path, op.data)
        if node.children:
            raise NotEmpty(f"delete {op.path}: the znode has children", op.path)
        return Change(WatchType.DELETED, op.path, before=node)

    def _undo(self, change: Change) -> Callable[[], None]:
        nodes = self.tree.nodes
        path = change.path
        parent = nodes[parent_of(path)]
        name = path.rpartition("/")[2]
        if change.kind is WatchType.CHANGED:
            node = nodes[path]
            was = (node.data, node.mzxid, node.mtime_ms, node.version)

            def restore() -> None:
                node.data, node.mzxid, node.mtime_ms, node.version = was
                node.shown = None

            return restore
        counted = (parent.creations, parent.pzxid)
        before = nodes.get(path)

        def put_back() -> None:
            parent.creations, parent.pzxid = counted
            parent.shown = None
            if before is None:
                del nodes[path]
                parent.children.discard(name)
            else:
                nodes[path] = before
                parent.children.add(name)

        return put_back

    def _commit(self, transaction: Transaction, *, apply: bool) -> None:
        if not transaction.changes:
            return
        if apply:
            for change in transaction.changes:
                self.tree.change(change, transaction.zxid, transaction.time_ms)
        self.log.append(transaction)
        for observer in self.observers:
            observer(transaction)

    def digest(self) -> str:
        """Returns the digest of all transactions. Equal digests mean equal histories."""
        found = hashlib.sha256()
        for transaction in self.log:
            changes = [(change.kind.value, change.path, change.data, change.owner) for change in transaction.changes]
            who = (transaction.zxid, transaction.time_ms, transaction.session, transaction.ops)
            found.update(repr((who, changes)).encode())
        return found.hexdigest()

    # --- followers ---------------------------------------------------------------------------------------------------

    def behind(self, replica: Replica) -> bool:
        return replica.applied < len(self.log)

    def advance(self, replica: Replica) -> None:
        """Applies the next transaction on the follower."""
        replica.apply(self.log[replica.applied])

    def catch_up(self, replica: Replica) -> None:
        while self.behind(replica):
            self.advance(replica)
