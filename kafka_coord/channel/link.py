"""The consumer's end of the socket channel, which the connector uses both as its session and as its channel, and the
socket that it runs on.

:class:`SocketLink` adds a lock, a clock and blocking calls to :class:`~kafka_coord.channel.membership.Membership`,
which documents the methods they share. The owner of the socket (:mod:`kafka_coord.channel.link`) calls
:meth:`SocketLink.connected`, :meth:`SocketLink.received` and :meth:`SocketLink.lost`. The connector calls the other
methods, just as it would over ZooKeeper. A method that needs a response waits up to ``patience_s`` seconds for it and
then raises :class:`StoreUnavailable`; the next call resumes the wait.

The algorithm follows the original design. :meth:`SocketClient.on_startup` asks the known hosts in turn for the
coordinator and connects to it, and :meth:`SocketClient.read_until_lost` reads until the connection ends. Then
:meth:`SocketClient.on_lost_connection` reports the loss, and the loop starts over.
"""

from __future__ import annotations

import logging
import math
import random
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TypeVar

from kafka_coord.channel.frames import AnsweredRequest, BadFrame, Decoder, Frame, Rpc, encode
from kafka_coord.channel.membership import (
    ChannelChanged,
    HangUp,
    Instruction,
    Membership,
    MetadataReceived,
    NameTaken,
    NotYet,
    Send,
    SessionChanged,
    WakeWaiters,
)
from kafka_coord.channel.messages import ClusterMetadata, Coordinator, MessageType, MetadataQuestion
from kafka_coord.channel.operations import Holder, Offsets, Registration
from kafka_coord.channel.search import CONNECT_S, LONGEST_PAUSE_S, SILENCE, Ask, CoordinatorSearch, Wait, longest_wait
from kafka_coord.errors import MalformedValue
from kafka_coord.model import Command, CommandId, Member, TopicPartition
from kafka_coord.model.member import Unresolved
from kafka_coord.zk.store import Clock, SessionListener, SessionState, Watcher, WatchEvent, WatchType

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class SocketLink:
    """One consumer's link to its coordinator. Thread-safe. Calls ``wake``, on any thread, whenever something has
    changed.

    :class:`~kafka_coord.channel.membership.Membership` explains ``resume_key`` and ``auto_commit``.
    """

    def __init__(
        self,
        group: str,
        consumer: str,
        clock: Clock,
        *,
        session_timeout_ms: int,
        resume_key: str,
        auto_commit: bool,
        wake: Callable[[], None],
        secret: str | None = None,
        patience_s: float = 0.0,
        on_metadata: Callable[[ClusterMetadata], None] = lambda _metadata: None,
    ) -> None:
        self.group = group
        self.clock = clock
        self.timeout_ms = session_timeout_ms
        self._membership = Membership(group, consumer, resume_key=resume_key, auto_commit=auto_commit, secret=secret)
        self._wake = wake
        self._patience_s = patience_s
        self._on_metadata = on_metadata
        self._news = threading.Condition(threading.RLock())
        self._listeners: list[SessionListener] = []
        self._watchers: list[Watcher] = []
        self._send: Callable[[Frame], None] | None = None
        self._hang_up: Callable[[], None] = lambda: None
        self.is_leaving = False
        """Whether the consumer has asked to leave. The coordinator closes the connection once it has answered."""

    # --- the connector's session -------------------------------------------------------------------------------------

    @property
    def consumer(self) -> str:
        return self._membership.consumer

    @property
    def session(self) -> SocketLink:
        return self

    @property
    def state(self) -> SessionState:
        return self._membership.state

    @property
    def session_id(self) -> int:
        return self._membership.session_id

    def lease_deadline(self) -> float:
        return self._membership.lease_deadline()

    def lease_began(self) -> float:
        return self._membership.lease_began()

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # --- the connection ----------------------------------------------------------------------------------------------

    def connected(self, send: Callable[[Frame], None], hang_up: Callable[[], None]) -> None:
        """Starts using a connection to the coordinator. ``send`` sends a frame and may raise ``OSError``. ``hang_up``
        ends the connection."""
        with self._news:
            self._send, self._hang_up = send, hang_up
            self._now(lambda: self._membership.connected(self.clock.monotonic()))

    def received(self, frame: Frame) -> None:
        self._now(lambda: self._membership.received(frame, self.clock.monotonic()))

    def lost(self) -> None:
        self._now(self._membership.lost)

    def ask_metadata(self) -> None:
        """If connected, asks the coordinator for the cluster metadata. ``on_metadata`` receives the response."""
        self._now(self._membership.ask_metadata)

    def close(self) -> None:
        self._now(self._membership.close)

    # --- instructions ------------------------------------------------------------------------------------------------

    def _now(self, what: Callable[[], Result]) -> Result:
        """Calls ``what``, carries out the resulting instructions, and returns the call's result."""
        with self._news:
            try:
                return what()
            finally:
                for instruction in self._membership.instructions():
                    self._do(instruction)

    def _wait_for_answer(self, what: Callable[[], Result]) -> Result:
        """Like :meth:`_now`, but waits for the coordinator's response. Raises :class:`NotYet` if it does not arrive in
        time."""
        with self._news:
            until = self.clock.monotonic() + self._patience_s
            while True:
                try:
                    return self._now(what)
                except NotYet:
                    left_s = until - self.clock.monotonic()
                    if left_s <= 0 or not self._news.wait(left_s):
                        raise

    def _do(self, instruction: Instruction) -> None:
        match instruction:
            case Send(frame):
                self._send_now(frame)
            case HangUp():
                self._hang_up()
            case SessionChanged(state):
                for listener in list(self._listeners):
                    listener(state)
            case ChannelChanged():
                watchers, self._watchers = self._watchers, []
                for watcher in watchers:
                    watcher(WatchEvent(WatchType.CHANGED, f"{self.group}/{self.consumer}"))
            case MetadataReceived(metadata):
                self._on_metadata(metadata)
            case WakeWaiters():
                self._news.notify_all()
                self._wake()

    def _send_now(self, frame: Frame) -> None:
        try:
            if self._send is not None:
                self._send(frame)
        except OSError as error:
            self._membership.send_failed(str(error))
            self._hang_up()

    # --- the connector's channel -------------------------------------------------------------------------------------

    def register(self, value: bytes) -> Registration | Holder:
        member = Member.from_bytes(value, "registration", consumer=self.consumer, incarnation=0)
        try:
            return self._wait_for_answer(lambda: self._membership.register(member, self.clock.monotonic()))
        except NameTaken as error:
            return Holder(error.incarnation, 0, None)

    def abandon(self, registration: Registration) -> None:
        self._now(lambda: self._membership.abandon(registration))

    def was_evicted(self, registration: Registration) -> bool:
        return self._membership.was_evicted(registration)

    def is_registered(self, registration: Registration, watcher: Watcher | None = None) -> bool:
        """Returns whether the given incarnation is still registered, as far as the consumer knows. ``watcher`` is
        notified of changes."""
        with self._news:
            self._watch(watcher)
            return self._membership.registration == registration

    def is_still_its_own(self, registration: Registration) -> bool:
        """Returns whether the coordinator has accepted the membership on this connection."""
        with self._news:
            return self._membership.registration == registration

    @property
    def rebalance_timeout_s(self) -> float:
        """Unlimited, because the coordinator reports an eviction over the connection."""
        return math.inf

    def outstanding(self, watcher: Watcher | None = None) -> tuple[tuple[CommandId, ...], tuple[str, ...]]:
        with self._news:
            self._watch(watcher)
            return self._membership.outstanding(), ()

    def _watch(self, watcher: Watcher | None) -> None:
        if watcher is not None:
            self._watchers.append(watcher)

    def unwatch(self) -> None:
        """Stops notifying watchers."""
        with self._news:
            self._watchers.clear()

    def read(self, command: CommandId) -> Command | None:
        with self._news:
            return self._membership.command(command)

    def drop(self, command: CommandId) -> None:
        self._now(lambda: self._membership.drop(command))

    def acknowledge(self, registration: Registration, command: CommandId, offsets: Offsets) -> frozenset[str]:
        self._wait_for_answer(lambda: self._membership.acknowledge(registration, command, offsets))
        return frozenset()

    def commit(self, registration: Registration, offsets: Offsets) -> frozenset[str]:
        return self._wait_for_answer(lambda: self._membership.commit(registration, offsets))

    def leave(self, registration: Registration, offsets: Offsets, *, for_good: bool = False) -> frozenset[str]:
        """Like :meth:`kafka_coord.channel.zookeeper.ConsumerChannel.leave`."""
        self.is_leaving = True
        return self._wait_for_answer(lambda: self._membership.leave(registration, offsets, for_good=for_good))

    def auto_commit(self, registration: Registration, offsets: Offsets) -> Offsets:
        return self._now(lambda: self._membership.auto_commit(registration, offsets))

    def await_ends(self, registration: Registration, reasons: Mapping[TopicPartition, str]) -> None:
        self._unresolved(registration, Unresolved(awaited=dict(reasons)))

    def keep_ends(self, registration: Registration, ends: Offsets) -> Offsets:
        return self._unresolved(registration, Unresolved(ends=dict(ends)))

    def refuse(self, registration: Registration, topics: Mapping[str, str]) -> None:
        self._unresolved(registration, Unresolved(refused=dict(topics)))

    def _unresolved(self, registration: Registration, unresolved: Unresolved) -> Offsets:
        return self._wait_for_answer(lambda: self._membership.unresolved(registration, unresolved))

    def started_at(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Does nothing, because the coordinator knows the offsets that it has sent."""

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        wanted = list(partitions)
        return self._wait_for_answer(lambda: self._membership.committed(wanted))


SEND_S = 5.0
"""The time limit for sending data, in seconds."""
LASTED_S = 1.0
"""How long a connection must last, in seconds. A shorter one counts as a failed attempt, so the client pauses before
it retries."""
_READ_BYTES = 1 << 16
_AT_ONCE = MetadataQuestion()


def ask_cluster_metadata(
    address: str,
    question: MetadataQuestion = _AT_ONCE,
    *,
    tls: ssl.SSLContext | None = None,
    timeout_s: float = CONNECT_S,
    opened: Callable[[socket.socket], None] = lambda _connection: None,
) -> ClusterMetadata:
    """Asks the instance at ``address`` (``host:port``) for the cluster metadata. The whole exchange may take at most
    ``timeout_s`` seconds. ``opened`` receives the connection, so that another thread can end the wait by shutting it
    down.

    Raises ``OSError``, :class:`BadFrame` and :class:`MalformedValue`.
    """
    until = time.monotonic() + timeout_s
    rpc, decoder = Rpc(), Decoder()
    _, frame = rpc.ask(MessageType.CLUSTER_METADATA, question.to_json())
    with _connect(address, tls, timeout_s) as connection:
        opened(connection)
        connection.sendall(encode(frame))
        while True:
            connection.settimeout(max(0.001, until - time.monotonic()))
            try:
                data = connection.recv(_READ_BYTES)
            except ConnectionResetError:
                data = b""
            if not data:
                raise OSError(
                    "the connection was closed without an answer. A Kafka broker does so: is this the broker's port,"
                    " rather than that of kafka-coord (serve --listen-channel)?"
                )
            for frame in decoder.feed(data):
                event = rpc.take(frame)
                if isinstance(event, AnsweredRequest):
                    return ClusterMetadata.from_json(event.frame)
                raise OSError(f"the instance answered {frame.get('code', frame['type'])}: {frame.get('message', '')}")


def _connect(address: str, tls: ssl.SSLContext | None, timeout_s: float) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return tls.wrap_socket(connection, server_hostname=host.strip("[]")) if tls else connection
    except BaseException:
        connection.close()
        raise


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # even with TLS, this shuts down the TCP socket itself


class _Line:
    """A connection that one thread reads from while other threads write to it. Two threads must not use a TLS
    connection at the same time (CPython issue 124984), so every read and every write holds a lock. The reader releases
    the lock while it waits for data."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._turn = threading.Lock()

    def receive(self, within_s: float) -> bytes:
        """Returns the bytes that have arrived, or ``b""`` once the connection has ended. Raises ``OSError``, and
        :class:`TimeoutError` if nothing arrives within ``within_s`` seconds."""
        until = time.monotonic() + within_s
        while True:
            awaited = select.POLLIN
            try:
                with self._turn:
                    return self._connection.recv(_READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                pass
            except ssl.SSLWantWriteError:
                awaited = select.POLLOUT
            self._await(awaited, until)

    def send(self, data: bytes) -> None:
        """Sends all data. Raises ``OSError``, and :class:`TimeoutError` after :data:`SEND_S` seconds."""
        until, left = time.monotonic() + SEND_S, memoryview(data)
        with self._turn:
            while left:
                awaited = select.POLLOUT
                try:
                    left = left[self._connection.send(left) :]
                    continue
                except (BlockingIOError, ssl.SSLWantWriteError):
                    pass
                except ssl.SSLWantReadError:
                    awaited = select.POLLIN
                self._await(awaited, until)

    def shut_down(self) -> None:
        """Shuts down the connection, so that both ends notice."""
        _shut_down(self._connection)

    def _await(self, event: int, until: float) -> None:
        waiting = select.poll()
        try:
            waiting.register(self._connection, event)
        except ValueError:
            raise OSError("the connection is closed") from None
        if not waiting.poll(max(0.0, until - time.monotonic()) * 1000):
            raise TimeoutError("the coordinator is not responding")


class SocketClient:
    """Keeps a consumer connected to its coordinator until :meth:`close`, on a thread of its own. On that thread,
    ``on_metadata`` is called with the cluster metadata from each host that responds."""

    def __init__(
        self,
        bootstrap: Iterable[str],
        link: SocketLink,
        *,
        on_metadata: Callable[[ClusterMetadata], None] = lambda _metadata: None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._search = CoordinatorSearch(bootstrap, random.uniform, link.timeout_ms / 1000)
        self._link = link
        self._on_metadata = on_metadata
        self._tls = tls
        self._closed = threading.Event()
        self._line: _Line | None = None
        self._asked: socket.socket | None = None
        self._last_problem = ""
        self._thread = threading.Thread(target=self._run, name=f"socket-{link.consumer}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Ends the connection and waits up to ``timeout_s`` seconds for the thread to end. May be called more than
        once."""
        self._closed.set()
        self._hang_up()
        asked = self._asked
        if asked is not None:
            _shut_down(asked)
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    # --- the original design's algorithm -----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                connected = self.on_startup()
                if connected is not None:
                    self._serve(*connected)
            except Exception as error:  # a bug must not stop the consumer
                log.exception("the socket channel failed consumer=%s", self._link.consumer)
                self.on_lost_connection(repr(error))
                self._closed.wait(LONGEST_PAUSE_S)

    def on_startup(self) -> tuple[socket.socket, Coordinator] | None:
        """Asks the known hosts in turn for the coordinator and connects to it. Returns ``None`` if a whole round has
        failed or the client has been closed."""
        while not self._closed.is_set():
            step = self._search.next(self._lease_left_s())
            if isinstance(step, Wait):
                self._say(step.problem)
                self._closed.wait(step.seconds)
                return None
            host = step.host if isinstance(step, Ask) else step.endpoint
            try:
                if isinstance(step, Ask):
                    metadata = ask_cluster_metadata(
                        host, step.question, tls=self._tls, timeout_s=step.within_s, opened=self._opened
                    )
                    self._search.take_answer(host, metadata)
                    self._on_metadata(metadata)
                else:
                    connection = _connect(host, self._tls, step.within_s)
                    self._search.connected()
                    return connection, step.coordinator
            except (OSError, BadFrame, MalformedValue) as error:
                self._search.failed(host, error)
        return None

    def _serve(self, connection: socket.socket, coordinator: Coordinator) -> None:
        began = time.monotonic()
        why, silent = self.read_until_lost(connection)
        lasted = time.monotonic() - began > LASTED_S
        self.on_lost_connection(why, lasted=lasted)
        if lasted:
            self._say("")
        self._search.ended(coordinator, why, silent=silent, lasted=lasted)

    def read_until_lost(self, connection: socket.socket) -> tuple[str, bool]:
        """Reads until the connection ends. Returns the reason, and whether the coordinator was silent for too long.

        The limit is half the session timeout, plus a random extra of up to a tenth of that, so that consumers do not
        all reconnect at once. Until ``resume`` is answered, it is a share of the remaining lease if that is shorter."""
        decoder = Decoder()
        silence_s = self._link.timeout_ms / 1000 * SILENCE * random.uniform(1.0, 1.1)  # noqa: S311  staggered
        resume_by = time.monotonic() + longest_wait(silence_s, self._lease_left_s())
        with connection:
            line = self._line = _Line(connection)
            self._link.connected(self._send, self._hang_up)
            try:
                while not self._closed.is_set():
                    resuming = self._link.state is SessionState.SUSPENDED
                    data = line.receive(resume_by - time.monotonic() if resuming else silence_s)
                    if not data:
                        return "the coordinator closed the connection", False
                    for frame in decoder.feed(data):
                        self._link.received(frame)
            except TimeoutError:
                return "the coordinator is not responding", True
            except (OSError, BadFrame) as error:
                return str(error), False
            finally:
                self._line = None
        return "the consumer closed the connection", False

    def _lease_left_s(self) -> float:
        return self._link.lease_deadline() - self._link.clock.monotonic()

    def on_lost_connection(self, why: str, *, lasted: bool = True) -> None:
        """Reports the lost connection to the link. The consumer keeps its partitions until its lease ends, and can
        resume until then."""
        if not self._closed.is_set():
            level = logging.WARNING if lasted and not self._link.is_leaving else logging.DEBUG
            log.log(level, "lost the connection to the coordinator consumer=%s reason=%r", self._link.consumer, why)
        self._link.lost()

    # --- sockets -----------------------------------------------------------------------------------------------------

    def _send(self, frame: Frame) -> None:
        line = self._line
        if line is None:
            raise OSError("not connected")
        line.send(encode(frame))

    def _opened(self, connection: socket.socket) -> None:
        self._asked = connection
        if self._closed.is_set():
            _shut_down(connection)

    def _hang_up(self) -> None:
        line = self._line
        if line is not None:
            line.shut_down()

    def _say(self, problem: str) -> None:
        if problem and problem != self._last_problem:
            log.warning("found no coordinator consumer=%s: %s; retrying", self._link.consumer, problem)
        self._last_problem = problem
