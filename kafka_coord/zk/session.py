"""The store on a real ZooKeeper, based on kazoo. Every call has a deadline, and the errors distinguish known from
unknown outcomes."""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import RolledBackError, RuntimeInconsistency
from kazoo.protocol.states import EventType, WatchedEvent
from kazoo.retry import KazooRetry

from kafka_coord.errors import BadVersion, MultiFailed, NoAuth, NoNode, StoreError, StoreUnavailable
from kafka_coord.zk import SystemClock, bulk, kazoo_private, layout
from kafka_coord.zk.acl_tree import AclChange, FoundAcl
from kafka_coord.zk.bulk import AddWatch, MultiRead, MultiWrite, SetWatches, WatchOf, to_stat
from kafka_coord.zk.calls import Calls, Unsupported
from kafka_coord.zk.kazoo_private import KazooHandler, translated
from kafka_coord.zk.kazoo_session import KazooSession, PersistentWatches
from kafka_coord.zk.options import ConnectString, ZkOptions, parse_connect_string, renewed_credentials, to_kazoo
from kafka_coord.zk.root import RootFollower, check_format
from kafka_coord.zk.store import (
    ANY_VERSION,
    HEADER,
    Armed,
    Clock,
    Create,
    GetChildren,
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
    described,
    op_size,
)

log = logging.getLogger(__name__)

kazoo_log = logging.getLogger("kafka_coord.zk.kazoo")


def _quieter(record: logging.LogRecord) -> bool:
    """A log filter that lowers kazoo's INFO and WARNING messages to DEBUG, since this project's own messages report the
    outcome of each attempt. It drops kazoo's DEBUG messages, which contain credentials."""
    if record.levelno in {logging.INFO, logging.WARNING}:
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return kazoo_log.isEnabledFor(logging.DEBUG)
    return record.levelno > logging.WARNING


kazoo_log.addFilter(_quieter)

_SHORTEST_CALL_TIMEOUT_S = 2.0
_MANY_WATCHES = 64
"""The number of watches at which three requests in sequence become faster than one pipelined request per watch."""

_WATCH_TYPES = {
    EventType.CREATED: WatchType.CREATED,
    EventType.DELETED: WatchType.DELETED,
    EventType.CHANGED: WatchType.CHANGED,
    EventType.CHILD: WatchType.CHILD,
}


def connect(
    hosts: str,
    *,
    session_timeout_ms: int = 10_000,
    connect_timeout_s: float = 15.0,
    call_timeout_s: float | None = None,
    options: ZkOptions | None = None,
    clock: Clock | None = None,
) -> KazooStore:
    """Opens a session on ``host:port,host:port/chroot``.

    ``call_timeout_s`` limits every call (default: two thirds of the session timeout, but at least 2 s).

    Raises :class:`SettingsError` for hosts or options that cannot be used, :class:`StoreUnavailable` if no server
    accepts the connection within ``connect_timeout_s``, :class:`NoNode` for a missing chroot, and
    :class:`UnknownVersion` if the tree there has another format.
    """
    where = parse_connect_string(hosts)
    store = KazooStore(
        where,
        session_timeout_ms=session_timeout_ms,
        call_timeout_s=call_timeout_s or max(_SHORTEST_CALL_TIMEOUT_S, session_timeout_ms / 1000 * 2 / 3),
        options=options or ZkOptions(),
        clock=clock or SystemClock(),
    )
    try:
        store.open(connect_timeout_s)
    except BaseException:
        store.close()
        raise
    return store


class KazooStore(Store):
    """A :class:`kafka_coord.zk.store.Store` that uses one kazoo client. :func:`connect` creates it."""

    def __init__(
        self, where: ConnectString, *, session_timeout_ms: int, call_timeout_s: float, options: ZkOptions, clock: Clock
    ) -> None:
        self._where = where
        self._clock = clock
        self._options = options
        # this class applies the chroot, because kazoo would not apply it to multi-reads and could not create it
        self.credentials = renewed_credentials(options)
        handler = KazooHandler(len(where.servers), self._identify)
        self._client = KazooClient(
            ",".join(where.servers),
            handler=handler,
            timeout=session_timeout_ms / 1000,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0),
            logger=kazoo_log,
            **options.client_arguments(),
        )
        self._session = KazooSession(self._client, clock, session_timeout_ms)
        servers = ", ".join(where.servers)
        self._calls = Calls(self._session, handler, clock, servers, call_timeout_s, options.max_request_bytes)
        self._prefix = len(where.chroot.encode())
        self._acl_size = len(bulk.packed_acl(options.longest_acls()))
        self._multi_read_refused_in = 0  # the session in which a server refused a multi-read
        self._persistent = PersistentWatches(self._client, where.relative)
        self._session.listen(self._persistent.session_is)
        self._root = RootFollower(self._read_root)
        self._pid = os.getpid()
        self._closing = threading.Lock()
        self._closed = False

    def __repr__(self) -> str:
        return f"KazooStore({self._where}, {self._session.state.value}, session={self._session.session_id:#x})"

    def _identify(self) -> ssl.SSLContext | None:
        """Gives kazoo the newest credentials for the connection that it is about to open. Returns the TLS context."""
        found = self.credentials.newest()
        kazoo_private.set_credentials(self._client, found.digest, found.sasl)
        return found.tls

    # --- opening and closing -----------------------------------------------------------------------------------------

    def open(self, timeout_s: float) -> None:
        """Starts the session; see :func:`connect`."""
        servers = ", ".join(self._where.servers)
        deadline = self._clock.monotonic() + timeout_s
        self._client.start_async()
        resolved = True
        while not self._session.wait_connected(min(0.25, max(0.0, deadline - self._clock.monotonic()))):
            if kazoo_private.gave_up(self._client):
                raise self._refused()
            resolved, before = not kazoo_private.looks_for_servers(self._client), resolved
            if not (resolved or before) and len(unknown := self._where.unknown_hosts()) == len(self._where.servers):
                raise StoreUnavailable(f"cannot resolve {', '.join(unknown)}: check the name and DNS")
            if self._clock.monotonic() >= deadline:
                raise StoreUnavailable(
                    f"no ZooKeeper at {servers} accepted a connection within {timeout_s:g} s: check that it is "
                    "running, that host and port are right, and that TLS settings and firewalls let this client through"
                )
        self._check_tree()
        self._session.start()

    def _refused(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"ZooKeeper at {', '.join(self._where.servers)} was reached, but it refused the connection: check the "
            "credentials, SASL and TLS settings on both sides"
        )

    def _check_tree(self) -> None:
        """Makes sure that the chroot exists, and that the tree in it, if there is one, has a known format. Raises
        :class:`NoNode` and :class:`UnknownVersion`."""
        # an old server may drop the connection on a multi-read, and it is better to find out now than later
        try:
            root, record = self.read_many([GetData("/"), GetData(layout.CLUSTER)])
        except NoAuth as error:
            if self._session.state is not SessionState.CONNECTED:  # kazoo connects before it sends credentials
                raise self._refused() from error
            return  # the ACL forbids reading it, so it exists
        except StoreUnavailable as error:
            if kazoo_private.gave_up(self._client):  # the credentials were refused before the request
                raise self._refused() from error
            raise
        if root is None:
            raise NoNode(
                f"chroot {self._where.chroot} does not exist on ZooKeeper at {', '.join(self._where.servers)}: "
                "check its spelling, or create it",
                self._where.chroot,
            )
        if isinstance(record, Node):
            check_format(record)

    def close(self) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._session.close()
        if os.getpid() != self._pid:
            return  # forked: the connection belongs to the parent
        # kazoo's stop() waits for the response to its close request, which never arrives if the server is frozen
        stopping = threading.Thread(target=self._stop, name="kafka-coord-zk-close", daemon=True)
        stopping.start()
        stopping.join(2.0)
        if stopping.is_alive():
            kazoo_private.break_connection(self._client)
            stopping.join(2.0)
        self._session.join(2.0)

    def _stop(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception:  # kazoo raises various errors if it cannot stop, and no caller could act on them
            log.debug("could not close the ZooKeeper client cleanly", exc_info=True)

    # --- session -----------------------------------------------------------------------------------------------------

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def session(self) -> KazooSession:
        return self._session

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        return self._session.listen(listener)

    # --- reads -------------------------------------------------------------------------------------------------------

    def _read_root(self, watcher: Watcher) -> Node | None:
        (node,) = self._arm_each((), [layout.CLUSTER], watcher, [GetData(layout.CLUSTER)]).answers
        return node if isinstance(node, Node) else None

    def get(self, path: str, watcher: Watcher | None = None) -> Node:
        at = self._root.at(path, watcher)
        data, stat = self._calls.ask("get", at, lambda: self._client.get_async(self._at(at), self._watch(at, watcher)))
        return Node(data or b"", to_stat(stat))

    def children(self, path: str, watcher: Watcher | None = None) -> tuple[str, ...]:
        at = self._root.at(path, watcher)
        names = self._calls.ask(
            "get children of", at, lambda: self._client.get_children_async(self._at(at), self._watch(at, watcher))
        )
        return tuple(sorted(names))

    def exists(self, path: str, watcher: Watcher | None = None) -> Stat | None:
        at = self._root.at(path, watcher)
        stat = self._calls.ask("exists", at, partial(self._ask_exists, at, watcher))
        return to_stat(stat) if stat is not None else None

    def exists_many(self, paths: Sequence[str], watcher: Watcher | None = None) -> tuple[Stat | None, ...]:
        if watcher is not None:
            return self.arm((), paths, watcher).stats
        at = [*map(self._root.at, paths)]
        return _stats(self._calls.pipelined("exists", at, lambda path: self._ask_exists(path, None)))

    def children_many(self, paths: Sequence[str], watcher: Watcher | None = None) -> tuple[Listing | None, ...]:
        if watcher is not None:
            return self.arm(paths, (), watcher).listings
        at = [*map(self._root.at, paths)]
        return _listings(self._calls.pipelined("get children of", at, lambda path: self._ask_children(path, None)))

    def arm(self, children: Sequence[str], data: Sequence[str], watcher: Watcher, reads: Sequence[Read] = ()) -> Armed:
        children = [self._root.at(path, watcher) for path in children]
        data = [self._root.at(path, watcher) for path in data]
        reads = self._root.reads_at(reads)
        if len(children) + len(data) >= _MANY_WATCHES and kazoo_private.can_remember_watches(self._client):
            try:
                return self._arm_at_once(children, data, watcher, reads)
            except (NoAuth, Unsupported) as error:
                log.debug("watching one by one reason='%s'", error)
        return self._arm_each(children, data, watcher, reads)

    def _arm_at_once(
        self, children: Sequence[str], data: Sequence[str], watcher: Watcher, reads: Sequence[Read]
    ) -> Armed:
        """Reads everything, then sets the watches. The server immediately fires each watch whose znode has changed."""
        # Take the zxid before reading, so that a change during the read is reported twice rather than missed.
        # ``exists("/")`` brings the zxid up to date. With a stale zxid, the server would also report older changes,
        # which the reads already include.
        self.exists("/")
        since = self._client.last_zxid
        # Read stats before names. If the names are newer than the stat, a change is reported again, which is harmless.
        # If they were older, a change in between would never be reported.
        asked = [read for path in children for read in (GetData(path), GetChildren(path))]
        of_data = dict.fromkeys(map(GetData, data))
        more = [read for read in reads if read not in of_data]
        answers = self._read_there([*asked, *of_data, *more])
        facts, names = answers[0 : len(asked) : 2], answers[1 : len(asked) : 2]
        results = dict(zip((*of_data, *more), answers[len(asked) :], strict=True))
        listings = tuple(
            Listing(children_of, node.stat) if isinstance(node, Node) and isinstance(children_of, tuple) else None
            for node, children_of in zip(facts, names, strict=True)
        )
        nodes = [results[GetData(path)] for path in data]
        stats = tuple(node.stat if isinstance(node, Node) else None for node in nodes)
        listed = [path for path, listing in zip(children, listings, strict=True) if listing is not None]
        watches = [(WatchOf.CHILDREN, self._at(path)) for path in listed]
        for path, stat in zip(data, stats, strict=True):
            watches.append((WatchOf.MISSING if stat is None else WatchOf.DATA, self._at(path)))
        for chunk in bulk.watch_chunks(watches):
            self._set_watches(since, chunk, watcher)
        return Armed(listings, stats, tuple(results[read] for read in reads))

    def watch_gone(self, paths: Sequence[str], watcher: Watcher) -> None:
        if len(paths) > 1 and kazoo_private.can_remember_watches(self._client):
            try:
                for chunk in bulk.watch_chunks([(WatchOf.DATA, self._at(path)) for path in paths]):
                    self._set_watches(self._client.last_zxid, chunk, watcher)
            except Unsupported as error:
                log.debug("watching one by one reason='%s'", error)
            else:
                return
        super().watch_gone(paths, watcher)

    def follow(self, path: str, watcher: Watcher) -> bool:
        session_id = self._session.session_id
        # ZooKeeper 3.6 introduced both multi-reads and persistent watches
        multi_read = self._options.multi_read and self._multi_read_refused_in != session_id
        if not (multi_read and self._persistent.may_be_asked_for(session_id)):
            return False
        absolute = self._at(path)
        request = AddWatch(absolute, before_sending=partial(self._persistent.remember, absolute, watcher))
        try:
            self._calls.ask("follow", path, lambda: kazoo_private.call(self._client, request))
        except StoreUnavailable:
            self._persistent.unanswered(session_id)
            self.unfollow(path, watcher)
            raise
        except StoreError as error:  # a server with WatchManagerOptimized reports that it could not read the request
            log.info("falling back to one-shot watches path=%s reason='%s'", path, error)
            self._persistent.refused(session_id)
            self.unfollow(path, watcher)
            return False
        self._persistent.accepted()
        return True

    def unfollow(self, path: str, watcher: Watcher) -> None:
        self._persistent.forget(self._at(path), watcher)

    def _set_watches(self, since: int, wanted: Sequence[tuple[WatchOf, str]], watcher: Watcher) -> None:
        """Sets the watches. The paths in ``wanted`` are absolute."""
        of_data: list[tuple[str, _Watch]] = []
        of_children: list[tuple[str, _Watch]] = []
        for of, path in wanted:
            watches = of_children if of is WatchOf.CHILDREN else of_data
            watches.append((path, _Watch(layout.as_readers_name_it(self._where.relative(path)), watcher)))
        remember = partial(kazoo_private.remember_watches, self._client, of_data, of_children)
        request = SetWatches(since, wanted, before_sending=remember)
        first = self._where.relative(wanted[0][1])
        self._calls.ask(f"watch {len(wanted)} from", first, lambda: kazoo_private.call(self._client, request))

    def _arm_each(self, children: Sequence[str], data: Sequence[str], watcher: Watcher, reads: Sequence[Read]) -> Armed:
        along = reads if len(reads) < _MANY_WATCHES else ()
        asking = [
            *(_Asking(path, partial(self._ask_children, path, watcher)) for path in children),
            *(_Asking(path, partial(self._ask_exists, path, watcher)) for path in data),
            *(_Asking(read.path, partial(self._ask_read, read)) for read in along),
        ]
        responses = self._calls.pipelined("watch", asking, lambda one: one.send())
        listings, stats = (
            _listings(responses[: len(children)]),
            _stats(responses[len(children) : len(children) + len(data)]),
        )
        answers = map(_result, along, responses[len(children) + len(data) :])
        return Armed(listings, stats, tuple(answers) if along else self._read_there(reads))

    def _ask_read(self, read: Read) -> Any:
        if isinstance(read, GetData):
            return self._client.get_async(self._at(read.path))
        return self._client.get_children_async(self._at(read.path))

    def _ask_exists(self, path: str, watcher: Watcher | None) -> Any:
        return self._client.exists_async(self._at(path), self._watch(path, watcher))

    def _ask_children(self, path: str, watcher: Watcher | None) -> Any:
        return self._client.get_children_async(self._at(path), self._watch(path, watcher), include_data=True)

    def read_many(self, reads: Sequence[Read]) -> tuple[ReadResult, ...]:
        return self._read_there(self._root.reads_at(reads))

    def _read_there(self, reads: Sequence[Read]) -> tuple[ReadResult, ...]:
        """Like :meth:`read_many`, at the places that the root has given."""
        return bulk.in_chunks(reads, self._read_chunk)

    def _read_chunk(self, reads: Sequence[Read]) -> tuple[list[ReadResult], int]:
        session_id = self._session.session_id
        if self._options.multi_read and self._multi_read_refused_in != session_id:
            request = MultiRead([type(read)(self._at(read.path)) for read in reads])
            try:
                answer = self._calls.ask(
                    f"multi-read of {len(reads)} from", reads[0].path, lambda: kazoo_private.call(self._client, request)
                )
            except Unsupported:
                log.info("reading one by one reason='multi-read requires ZooKeeper 3.6 or later'")
                self._multi_read_refused_in = session_id
                with suppress(StoreUnavailable):  # the server drops the connection after refusing, so retry below
                    return self._read_pipelined(reads)
            else:
                return bulk.results(reads, answer), answer.size
        return self._read_pipelined(reads)

    def _read_pipelined(self, reads: Sequence[Read]) -> tuple[list[ReadResult], int]:
        found = [*map(_result, reads, self._calls.pipelined("read", reads, self._ask_read))]
        weight = sum(len(one.data) if isinstance(one, Node) else 32 * len(one or ()) for one in found)
        return found, weight

    def read_acls(self, paths: Sequence[str]) -> tuple[FoundAcl | NoAuth | None, ...]:
        """Reads the ACLs of many znodes, pipelined. Returns ``None`` for a missing znode, and the error for one whose
        ACL may not be read."""
        found = self._calls.pipelined(
            "get the ACL of", paths, lambda path: self._client.get_acls_async(self._at(path)), refusals=(NoAuth,)
        )
        return tuple(FoundAcl.of(*one) if isinstance(one, tuple) else one for one in found)

    def write_acls(self, changes: Sequence[AclChange]) -> tuple[StoreError | None, ...]:
        """Sets many ACLs in a pipeline, because a multi cannot set ACLs. Returns ``None`` for each ACL that was set or
        whose znode is gone, and the refusal for any other."""
        responses = self._calls.pipelined(
            "set the ACL of",
            changes,
            lambda one: self._client.set_acls_async(self._at(one.path), to_kazoo(one.acl), one.version),
            refusals=(NoAuth, BadVersion),
        )
        return tuple(one if isinstance(one, StoreError) else None for one in responses)

    @property
    def acl_bytes(self) -> int:
        return self._acl_size

    @property
    def options(self) -> ZkOptions:
        """The options of this client: how it identifies itself, and the ACLs it sets."""
        return self._options

    def ensure_prepared(self) -> None:
        if self._options.plan is not None:
            paths = self._options.plan.prepared()
            for path, stat in zip(paths, self.exists_many(paths), strict=True):
                if stat is None:
                    self.ensure_path(path)

    # --- writes ------------------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        size = HEADER + op_size(Create(path, data), self._prefix, self._acl_size)
        self._calls.check_size(size, "create", path)
        # kazoo drops a trailing slash unless the znode is sequential, where the slash means an empty name
        created = self._calls.ask(
            "create",
            path,
            lambda: self._client.create_async(
                self._at(path), data, self._options.acls_of(path), ephemeral=ephemeral, sequence=sequence
            ),
            through_leader=True,
            size=size,
        )
        return self._where.relative(created)

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        size = HEADER + op_size(SetData(path, data), self._prefix)
        self._calls.check_size(size, "set", path)
        stat = self._calls.ask(
            "set", path, lambda: self._client.set_async(self._at(path), data, version), through_leader=True, size=size
        )
        return to_stat(stat)

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._calls.ask("delete", path, lambda: self._client.delete_async(self._at(path), version), through_leader=True)

    def multi(self, ops: Sequence[Op]) -> tuple[OpResult, ...]:
        if not ops:
            return ()
        doing = described(ops)
        body = bulk.packed(ops, self._at, lambda path: bulk.packed_acl(self._options.acls_of(path)))
        size = HEADER + len(body)
        self._calls.check_size(size, doing, "")
        request = MultiWrite(body)
        answers = self._calls.ask(
            doing, "", lambda: kazoo_private.call(self._client, request), through_leader=True, size=size
        )
        self._raise_failed(ops, answers, doing)
        return tuple(self._where.relative(answer) if isinstance(answer, str) else answer for answer in answers)

    def _raise_failed(self, ops: Sequence[Op], answers: Sequence[Any], doing: str) -> None:
        """Raises the error of the operation at fault. A failed multi returns an error for every operation."""
        failed = [(index, answer) for index, answer in enumerate(answers) if isinstance(answer, Exception)]
        if not failed and len(answers) == len(ops):
            return
        if not failed:
            raise StoreUnavailable(
                f"{doing}: ZooKeeper returned {len(answers)} results for {len(ops)} operations; the outcome is unknown"
            )
        innocent = RolledBackError | RuntimeInconsistency
        index, error = next(((i, e) for i, e in failed if not isinstance(e, innocent)), failed[0])
        op = ops[min(index, len(ops) - 1)]
        cause = translated(error, type(op).__name__.lower(), op.path)
        if isinstance(cause, StoreUnavailable):
            raise cause
        raise MultiFailed(f"{doing} failed and changed nothing: operation {index}: {cause}", op.path, index, cause)

    def sync(self, path: str = "/") -> None:
        self._calls.ask("sync", path, lambda: self._client.sync_async(self._at(path)), through_leader=True)

    def _at(self, path: str) -> str:
        return self._where.absolute(path)

    def _watch(self, path: str, watcher: Watcher | None) -> _Watch | None:
        return _Watch(layout.as_readers_name_it(path), watcher) if watcher is not None else None


def _stats(found: Sequence[Any]) -> tuple[Stat | None, ...]:
    return tuple(to_stat(stat) if stat is not None else None for stat in found)


def _listings(found: Sequence[Any]) -> tuple[Listing | None, ...]:
    return tuple(
        Listing(tuple(sorted(answer[0])), to_stat(answer[1])) if answer is not None else None for answer in found
    )


def _result(read: Read, answer: Any) -> ReadResult:
    if answer is None:
        return None
    if isinstance(read, GetData):
        data, stat = answer
        return Node(data or b"", to_stat(stat))
    return tuple(sorted(answer))


class _Asking(NamedTuple):
    """One of several requests sent together."""

    path: str
    send: Callable[[], Any]


class _Watch:
    """A watcher in the form that kazoo expects. Two objects with the same path and watcher are equal, so kazoo stores
    only one of them."""

    __slots__ = ("_path", "_watcher")

    def __init__(self, path: str, watcher: Watcher) -> None:
        self._path = path
        self._watcher = watcher

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Watch) and self._path == other._path and self._watcher == other._watcher

    def __hash__(self) -> int:
        return hash((self._path, self._watcher))

    def __call__(self, event: WatchedEvent) -> None:
        kind = _WATCH_TYPES.get(event.type, WatchType.CONNECTION)  # an event of any other type does not name a path
        self._watcher(WatchEvent(kind, self._path))
