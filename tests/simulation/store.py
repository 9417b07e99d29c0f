"""A Store on the simulated ZooKeeper. It is one client with its sessions, its connection, and their faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, cast

from kafka_coord.errors import NoNode, RequestTooLarge, SessionLost, StoreUnavailable
from kafka_coord.zk import layout
from kafka_coord.zk.kazoo_session import SessionLease
from kafka_coord.zk.options import DEFAULT_MAX_REQUEST_BYTES
from kafka_coord.zk.root import RootFollower
from kafka_coord.zk.store import (
    ANY_VERSION,
    Clock,
    Create,
    Delete,
    GetData,
    Listing,
    Node,
    Op,
    OpResult,
    Read,
    ReadResult,
    SessionListener,
    SessionState,
    SetData,
    Stat,
    Store,
    Watcher,
    WatchEvent,
    WatchType,
    op_size,
)
from tests.simulation.scheduler import VirtualClock
from tests.simulation.server import Replica, ServerSession, SimulatedZooKeeper

T = TypeVar("T")


class Surroundings(Protocol):
    """The points at which a store call yields to the scheduler. Other actors may run there, and faults may happen."""

    def before_effect(self, store: SimulatedStore, doing: str, /) -> None: ...

    def before_reply(self, store: SimulatedStore, doing: str, /) -> None: ...

    def between_reads(self, store: SimulatedStore, /) -> None: ...


class Quiet:
    """Answers every call immediately, without a scheduler, for the comparison with a real server."""

    def before_effect(self, _store: SimulatedStore, _doing: str) -> None:
        return

    def before_reply(self, _store: SimulatedStore, _doing: str) -> None:
        return

    def between_reads(self, _store: SimulatedStore) -> None:
        return


@dataclass(slots=True)
class SimulatedSession:
    """The client's view of its session, with its state and its lease."""

    state: SessionState
    session_id: int
    timeout_ms: int
    lease: SessionLease

    def lease_deadline(self) -> float:
        return self.lease.lease_deadline()

    def lease_began(self) -> float:
        return self.lease.began_at


class SimulatedStore(Store):
    """The store of one process. The cluster connects, cuts and ends it. The code under test calls the other methods."""

    def __init__(
        self, server: SimulatedZooKeeper, clock: Clock, surroundings: Surroundings, timeout_ms: int, name: str = ""
    ) -> None:
        self.name = name
        self.server = server
        self.dead = False
        """Whether the process was killed. None of its later calls may reach the tree."""
        self.asking = ""
        """The position of the request in flight."""
        self._clock = clock
        self._around = surroundings
        self._session = SimulatedSession(SessionState.CONNECTING, 0, timeout_ms, SessionLease())
        self._listeners: dict[int, SessionListener] = {}
        self._next_listener = 0
        self._connection = 0
        self.listed_at: dict[str, float] = {}
        """When the children of each path were last read."""
        self._root = RootFollower(self._read_root)
        self.remote: ServerSession | None = None
        self.replica: Replica = server.replicas[0]
        self._arrived: list[tuple[WatchEvent, tuple[Watcher, ...]]] = []

    # --- what the cluster does to it ---------------------------------------------------------------------------------

    def connect(self, replica: Replica) -> bool:
        """Connects, and resumes a live session. Returns ``False`` if the session has ended, which the client learns by
        this."""
        now = self._clock.monotonic()
        remote = self.remote
        if remote is not None and remote.ended:
            self.remote = None
            self._session.session_id = 0
            self._session.lease.ended()
            self._tell(SessionState.LOST)
            return False
        if remote is None:
            remote = self.remote = self.server.open_session(self._session.timeout_ms / 1000, now)
        remote.heard_at = now
        self.server.catch_up(replica)  # a client refuses a server with an older state than the client has seen
        self.replica = replica
        self.server.session_changes += 1
        replica.connected(remote)
        self._session.session_id = remote.session_id
        self._session.lease.connected(now, remote.session_id, remote.timeout_s)
        self._tell(SessionState.CONNECTED)
        return True

    def disconnect(self) -> None:
        """Breaks the connection. The client notices this."""
        if self._session.state is not SessionState.CONNECTED or self.remote is None:
            return
        self._connection += 1
        self._arrived += self.remote.outbox
        self.remote.outbox = []
        lost = self.replica.disconnected(self.remote)
        self._arrived += [(WatchEvent(WatchType.CONNECTION, path), (watcher,)) for path, watcher in lost]
        self._tell(SessionState.SUSPENDED)

    def heartbeat(self) -> None:
        """Does the client's own work in each quarter of its timeout."""
        if self._session.state is SessionState.CONNECTED and self.remote is not None and not self.remote.ended:
            now = self._clock.monotonic()
            self.remote.heard_at = now
            self._session.lease.record_answer(now, through_leader=True)

    def heartbeat_due(self) -> float:
        return self._session.lease.leader_heard_at + 0.25 * self._session.timeout_ms / 1000

    def has_notification(self) -> bool:
        return bool(self._arrived or (self.remote is not None and self.remote.outbox))

    def deliver(self) -> None:
        """Calls the watchers of the oldest waiting notification."""
        if not self._arrived and self.remote is not None:
            self._arrived, self.remote.outbox = self.remote.outbox, []
        if self._arrived:
            event, watchers = self._arrived.pop(0)
            for watcher in watchers:
                watcher(replace(event, path=layout.as_readers_name_it(event.path)))

    def _tell(self, state: SessionState) -> None:
        self._session.state = state
        for listener in list(self._listeners.values()):
            listener(state)

    # --- Store -------------------------------------------------------------------------------------------------------

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def session(self) -> SimulatedSession:
        return self._session

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        self._next_listener += 1
        key = self._next_listener
        self._listeners[key] = listener

        def off() -> None:
            self._listeners.pop(key, None)

        return off

    def _read_root(self, watcher: Watcher) -> Node | None:
        path = layout.CLUSTER

        def ask() -> Node | None:
            return self.replica.get(path) if self._exists(path, watcher) is not None else None

        return self._ask(f"get {path}", ask)

    def get(self, path: str, watcher: Watcher | None = None) -> Node:
        at = self._root.at(path, watcher)
        return self._ask(f"get {at}", lambda: self._get(at, watcher))

    def _get(self, path: str, watcher: Watcher | None) -> Node:
        node = self.replica.get(path)
        self.replica.watch_data(path, self._session.session_id, watcher)
        return node

    def children(self, path: str, watcher: Watcher | None = None) -> tuple[str, ...]:
        at = self._root.at(path, watcher)
        return self._ask(f"children {at}", lambda: self._listing(at, watcher).names)

    def _listing(self, path: str, watcher: Watcher | None) -> Listing:
        listing = self.replica.listing(path)
        self.listed_at[path] = self._clock.monotonic()
        self.replica.watch_children(path, self._session.session_id, watcher)
        return listing

    def exists(self, path: str, watcher: Watcher | None = None) -> Stat | None:
        at = self._root.at(path, watcher)
        return self._ask(f"exists {at}", lambda: self._exists(at, watcher))

    def _exists(self, path: str, watcher: Watcher | None) -> Stat | None:
        self.replica.watch_data(path, self._session.session_id, watcher)
        return self.replica.stat(path)

    def exists_many(self, paths: Sequence[str], watcher: Watcher | None = None) -> tuple[Stat | None, ...]:
        places = [self._root.at(path, watcher) for path in paths]

        def ask() -> tuple[Stat | None, ...]:
            found = []
            for path in places:
                found.append(self._exists(path, watcher))
                self._around.between_reads(self)
            return tuple(found)

        return self._ask(f"exists {len(paths)} paths from {paths[0] if paths else ''}", ask)

    def children_many(self, paths: Sequence[str], watcher: Watcher | None = None) -> tuple[Listing | None, ...]:
        def one(path: str) -> Listing | None:
            try:
                return self._listing(path, watcher)
            except NoNode:
                return None

        places = [self._root.at(path, watcher) for path in paths]

        def ask() -> tuple[Listing | None, ...]:
            found = []
            for path in places:
                found.append(one(path))
                self._around.between_reads(self)
            return tuple(found)

        return self._ask(f"children of {len(paths)} paths from {paths[0] if paths else ''}", ask)

    def follow(self, path: str, watcher: Watcher) -> bool:
        if self.server.can_follow:
            self._ask(f"follow {path}", lambda: self.replica.follow(path, self._session.session_id, watcher))
        return self.server.can_follow

    def unfollow(self, path: str, watcher: Watcher) -> None:
        self.replica.unfollow(path, self._session.session_id, watcher)

    def read_many(self, reads: Sequence[Read]) -> tuple[ReadResult, ...]:
        def one(read: Read) -> ReadResult:
            try:
                if isinstance(read, GetData):
                    return self.replica.get(read.path)
                self.listed_at[read.path] = self._clock.monotonic()
                return self.replica.listing(read.path).names
            except NoNode:
                return None

        if not reads:
            return ()
        reads = self._root.reads_at(reads)
        return self._ask(f"read {len(reads)} from {reads[0].path}", lambda: tuple(one(read) for read in reads))

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        made = self._write(f"create {path}", Create(path, data, ephemeral, sequence))
        return str(made)

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        return cast(Stat, self._write(f"set {path}", SetData(path, data, version)))

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._write(f"delete {path}", Delete(path, version))

    def multi(self, ops: Sequence[Op]) -> tuple[OpResult, ...]:
        if not ops:
            return ()
        doing = "multi " + ", ".join(f"{type(op).__name__} {op.path}" for op in ops)
        _check_size(ops)
        return self._ask(doing, lambda: self.server.write(ops, self._session.session_id, self._ms()), writes=True)

    def sync(self, path: str = "/") -> None:
        self._ask(f"sync {path}", lambda: None, writes=True)

    def close(self) -> None:
        if self.remote is not None and not self.remote.ended and not self.dead:
            self.disconnect()
            self.server.end_session(self.remote, self._ms())
        self._session.session_id = 0
        self._session.lease.ended()
        self._tell(SessionState.CLOSED)

    # --- one call ----------------------------------------------------------------------------------------------------

    def _write(self, doing: str, op: Op) -> OpResult:
        _check_size([op])
        return self._ask(doing, lambda: self.server.write_one(op, self._session.session_id, self._ms()), writes=True)

    def _ask(self, doing: str, effect: Callable[[], T], *, writes: bool = False) -> T:
        connection = self._connection
        self._connected(connection, doing)
        sent_at = self._clock.monotonic()
        self.asking = "before the effect of a request"
        self._around.before_effect(self, doing)
        self._connected(connection, doing)
        failure: Exception | None = None
        result: T | None = None
        try:
            result = effect()
        except (NoNode, StoreUnavailable):
            raise
        except Exception as error:  # noqa: BLE001 - an answer like any other: it has to come back first
            failure = error
        if writes:
            self.server.catch_up(self.replica)  # a follower answers a write after it has applied the write
            if self.remote is not None:
                self.remote.heard_at = max(self.remote.heard_at, sent_at)
        self.asking = "between the effect of a request and its reply"
        self._around.before_reply(self, doing)
        self.asking = ""
        self._connected(connection, doing)
        self._session.lease.record_answer(sent_at, through_leader=writes, now=self._clock.monotonic())
        if failure is not None:
            raise failure
        return result  # type: ignore[return-value]  # effect's own

    def _connected(self, connection: int, doing: str) -> None:
        if self.remote is None:
            raise SessionLost(f"{doing}: there is no session")
        if connection != self._connection or self._session.state is not SessionState.CONNECTED:
            raise StoreUnavailable(f"{doing}: the connection broke before the reply; it may have taken effect")
        if self.remote.ended:
            raise SessionLost(f"{doing}: the session has ended")

    def _ms(self) -> int:
        return int(self._clock.time() * 1000)


def _check_size(ops: Sequence[Op]) -> None:
    """A client sends no request that is longer than a server takes."""
    size = sum(map(op_size, ops))
    if size > DEFAULT_MAX_REQUEST_BYTES:
        raise RequestTooLarge(f"{ops[0].path}: a request of {size} bytes", ops[0].path)


def connected_store(
    server: SimulatedZooKeeper | None = None,
    clock: Clock | None = None,
    around: Surroundings | None = None,
    timeout_ms: int = 10_000,
) -> SimulatedStore:
    """Returns a store with a session, on a new server by default."""
    server = server or SimulatedZooKeeper()
    store = SimulatedStore(server, clock or VirtualClock(), around or Quiet(), timeout_ms)
    store.connect(server.replicas[0])
    return store
