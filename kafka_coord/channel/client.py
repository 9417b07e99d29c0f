"""Runs the socket of a :class:`~kafka_coord.channel.link.SocketLink`: finds the coordinator, connects, reads and
reconnects.

The algorithm follows the original design. :meth:`SocketClient.on_startup` asks the known hosts in turn for the
coordinator and connects to it, and :meth:`SocketClient.read_until_lost` reads until the connection ends. Then
:meth:`SocketClient.on_lost_connection` reports the loss, and the loop starts over.
"""

from __future__ import annotations

import logging
import random
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from kafka_coord.channel.frames import BadFrame, Decoder, Frame, encode
from kafka_coord.channel.link import SocketLink
from kafka_coord.channel.messages import ClusterMetadata, Coordinator, MessageType, MetadataQuestion
from kafka_coord.channel.rpc import AnsweredRequest, Rpc
from kafka_coord.channel.search import CONNECT_S, LONGEST_PAUSE_S, SILENCE, Ask, CoordinatorSearch, Wait, longest_wait
from kafka_coord.errors import MalformedValue
from kafka_coord.zk.store import SessionState

log = logging.getLogger(__name__)

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
