"""Adapts kazoo: its private attributes, its exceptions, and a thread handler of our own.

Every use of a private attribute is here, with a check that it exists and a fallback if it does not. The module is
written for kazoo 2.10 and 2.11. If a later kazoo moves an attribute, the store still works; each function says what is
lost in that case.

The thread handler differs from kazoo's own in how it treats signals, silent servers and waiting.

**Signals.** To send a request, kazoo wakes its connection thread through a socket, inside a bare ``except`` that turns
every exception into "Connection has been closed" (``KazooClient._call``, kazoo 2.10 and 2.11). Waking the other thread
releases the interpreter lock, so a signal handler often raises its exception right there. The program should stop, but
instead it sees a closed ZooKeeper session and carries on. kazoo stores that error in the request's result, where the
result class in this module detects it, so that the signal's exception can be raised instead. By then, the connection
thread may have missed its wake-up. It sends one request per wake-up, so every later request would be sent one wake-up
late. The handler therefore wakes the thread once more.

**Silent servers.** A server might not respond at all, because its machine is off or a firewall drops the packets. kazoo
waits for the whole session timeout. Like the Java client, this handler waits for the session timeout divided by the
number of servers, so that another server can still be reached in time.

**Waiting.** kazoo waits five times per request, each time with a new epoll object. That accounts for up to half the
cost of a request (docs/performance.md). This handler uses ``poll`` instead.

**Renewed certificates.** kazoo reads the files of certificates for each connection, and cannot connect while they are
half written. This handler gets a TLS context from its caller.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Protocol

from kazoo import exceptions as kazoo
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.handlers.threading import AsyncResult, KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.serialization import Watch as WatchWire
from kazoo.protocol.states import KeeperState, WatchedEvent

from kafka_coord.errors import (
    BadVersion,
    NoAuth,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionLost,
    StoreError,
    StoreUnavailable,
)

log = logging.getLogger(__name__)

Watch = Callable[[WatchedEvent], None]


class WireRequest(Protocol):
    """A request that kazoo does not support: its type number in ZooKeeper, its bytes, and a decoder of the response."""

    @property
    def type(self) -> int: ...

    def serialize(self) -> bytes: ...

    def deserialize(self, buffer: bytes, offset: int) -> Any: ...


def on_connected(
    client: KazooClient,
    monotonic: Callable[[], float],
    tell: Callable[[float, int, int], None],
    is_over: Callable[[], bool],
) -> bool:
    """Calls ``tell(sent_at, session_id, negotiated_timeout_ms)`` each time the server accepts a connect request, before
    kazoo reports it.

    kazoo keeps the negotiated timeout only in local variables. Returns False if the timeout cannot be read. The caller
    then assumes the shortest timeout that a server grants, which is equally safe, but makes the lease shorter.

    A server hangs up on a client that has seen a newer zxid than its own, which is right within one ensemble. But
    another ensemble may have taken its place (ADR 58), and kazoo never forgets a zxid. So once ``is_over`` says that
    the session has been silent for long enough to be over, a refused connect request is repeated without one.
    """
    lost = "cannot read the negotiated session timeout; assuming the shortest that a server grants (which is safe)"
    connection, invoke = _of_connection(client, "_invoke", lost)
    if invoke is None:
        return False

    def listening(timeout: float, request: Any, xid: int | None = None) -> Any:
        sent_at = monotonic()
        is_connect = type(request).__name__ == "Connect"
        try:
            answer = invoke(timeout, request, xid)
        except ConnectionDropped:
            if is_connect and is_over():
                client.last_zxid = 0
            raise
        if is_connect and isinstance(answer, tuple):
            accepted = answer[0]
            if accepted.time_out > 0:
                tell(sent_at, accepted.session_id, accepted.time_out)
        return answer

    connection._invoke = listening
    return True


def set_credentials(client: KazooClient, digest: str | None, sasl: Mapping[str, str] | None) -> None:
    """Sets the credentials that kazoo sends on its next connection. If a later kazoo hides those for SASL, the first
    ones stay in use."""
    client.auth_data = {("digest", digest)} if digest is not None else set()
    connection = getattr(client, "_connection", None)
    if sasl is not None and connection is not None and hasattr(connection, "sasl_options"):
        connection.sasl_options = dict(sasl)


def _of_connection(client: KazooClient, name: str, lost: str) -> tuple[Any, Any]:
    """Returns kazoo's connection and the connection's method ``name``. If that method is missing, returns ``None``
    for it and logs which feature is lost."""
    connection = getattr(client, "_connection", None)
    method = getattr(connection, name, None)
    if method is None:
        log.warning("%s reason='this version of kazoo has no ConnectionHandler.%s'", lost, name)
    return connection, method


def on_watch_events(client: KazooClient, tell: Callable[[int, str], None]) -> bool:
    """Calls ``tell(type, path)`` for every watch event from the server, on kazoo's connection thread, after kazoo has
    called its own watchers.

    kazoo calls a watcher once, and only for its own path, because it does not support persistent or recursive watches.
    Returns False if this version of kazoo hides its events. The caller then uses one-shot watches.
    """
    lost = "cannot use persistent watches; falling back to one-shot watches"
    connection, read = _of_connection(client, "_read_watch_event", lost)
    if read is None:
        return False

    def listening(buffer: bytes, offset: int) -> Any:
        answer = read(buffer, offset)
        event, _ = WatchWire.deserialize(buffer, offset)
        tell(event.type, event.path)
        return answer

    connection._read_watch_event = listening
    return True


def call(client: KazooClient, request: WireRequest) -> Any:
    """Sends a request that kazoo does not support and returns kazoo's async result. Returns ``None`` if this version of
    kazoo cannot send it. In that case, reads and watches are sent one by one, and multis cannot be sent."""
    send = getattr(client, "_call", None)
    if send is None:
        return None
    result = client.handler.async_result()
    send(request, result)
    return result


def remember_watches(
    client: KazooClient, data: Iterable[tuple[str, Watch]], children: Iterable[tuple[str, Watch]]
) -> None:
    """Makes kazoo call the given watches when the server reports a change to a path's data or children. Call it only on
    kazoo's connection thread, because kazoo itself changes its tables only there."""
    for found, watches in ((client._data_watchers, data), (client._child_watchers, children)):
        for path, watch in watches:
            found[path].add(watch)


def can_remember_watches(client: KazooClient) -> bool:
    """Returns whether this version of kazoo stores its watches where :func:`remember_watches` puts them. If not,
    watches are set one by one."""
    return all(isinstance(getattr(client, name, None), defaultdict) for name in ("_data_watchers", "_child_watchers"))


def break_connection(client: KazooClient) -> None:
    """Makes kazoo drop its connection and look for another server, without ending the session. kazoo detects a dead
    connection by an unanswered ping, but it sends pings only after it has sent nothing else for a while, so a client
    that keeps sending never detects it. If the private socket is missing, this does nothing."""
    connected = getattr(getattr(client, "_connection", None), "_socket", None)
    if connected is None:
        return
    try:
        connected.shutdown(socket.SHUT_RDWR)
    except (OSError, AttributeError):  # already gone
        return


def gave_up(client: KazooClient) -> bool:
    """Returns whether kazoo's connection thread has ended on its own, because of refused credentials or an unexpected
    error.

    A client that was just started is also in state ``CLOSED`` until its thread has resolved the names of the servers.
    Only the thread distinguishes the two cases. If this version of kazoo hides its thread, a slow client counts as
    ended.
    """
    if client.client_state not in {KeeperState.CLOSED, KeeperState.AUTH_FAILED}:
        return False
    running = getattr(getattr(getattr(client, "_connection", None), "_connection_routine", None), "is_alive", None)
    return running is None or not running()


def looks_for_servers(client: KazooClient) -> bool:
    """Returns whether a started client is still resolving the servers' names and has not tried to reach any server."""
    return client.client_state == KeeperState.CLOSED and not gave_up(client)


def is_read_only(client: KazooClient) -> bool:
    """Returns whether the client is connected read-only, that is, to a server that is cut off from its ensemble and may
    serve stale data. kazoo reports such a client as connected."""
    return bool(client.client_state == KeeperState.CONNECTED_RO)


_FACTS: tuple[tuple[type[Exception], type[StoreError], str], ...] = (
    (kazoo.NoNodeError, NoNode, "the znode (for a create, its parent) does not exist"),
    (kazoo.NodeExistsError, NodeExists, "the znode already exists"),
    (kazoo.NotEmptyError, NotEmpty, "the znode has children"),
    (kazoo.BadVersionError, BadVersion, "the znode's version has changed, because someone else has written to it"),
    (kazoo.NoAuthError, NoAuth, "the znode's ACL does not allow it with these credentials"),
    (kazoo.InvalidACLError, NoAuth, "the ACL to set is not valid: is this session authenticated?"),
    (kazoo.AuthFailedError, NoAuth, "ZooKeeper refused the credentials"),
    (kazoo.SessionClosedRequireSaslError, NoAuth, "ZooKeeper accepts only clients that authenticate with SASL"),
    (kazoo.NoChildrenForEphemeralsError, StoreError, "an ephemeral znode cannot have children"),
    (kazoo.UnimplementedError, StoreError, "this ZooKeeper server is too old for the operation"),
    (kazoo.QuotaExceededError, StoreError, "the quota set in ZooKeeper for this path is exhausted"),
    (kazoo.BadArgumentsError, StoreError, "ZooKeeper rejected the arguments (is the path invalid?)"),
    (kazoo.MarshallingError, StoreError, "ZooKeeper could not read the request"),
    (kazoo.SessionExpiredError, SessionLost, "the session has ended; pending requests may have taken effect"),
    (
        kazoo.ConnectionLoss,
        StoreUnavailable,
        "the connection broke before a response arrived; the request may have taken effect",
    ),
    (KazooTimeoutError, StoreUnavailable, "no response in time; the request may have taken effect"),
)


def translated(error: Exception, doing: str, path: str = "", hint: str = "") -> StoreError:
    """Returns the typed error for an exception that kazoo raised. ``doing`` names the operation, such as "set" or
    "multi of 3 operations". Any error that is not clearly a refusal becomes :class:`StoreUnavailable`.
    """
    where = f"{doing} {path}".strip()
    for raised, ours, sentence in _FACTS:
        if isinstance(error, raised):
            return ours(f"{where}: {sentence}{hint}", path)
    return StoreUnavailable(f"{where}: {type(error).__name__} {error}; whether it took effect is unknown{hint}", path)


def is_answer(error: Exception) -> bool:
    """Returns whether the server sent the error in response to the request, which proves that the session is alive."""
    return isinstance(error, kazoo.ZookeeperError) and not isinstance(
        error,
        kazoo.ConnectionLoss
        | kazoo.SessionExpiredError
        | kazoo.AuthFailedError
        | kazoo.SessionMovedError
        | kazoo.OperationTimeoutError,
    )


_ALWAYS_REPORTED = select.POLLERR | select.POLLHUP | select.POLLNVAL


class KazooHandler(SequentialThreadingHandler):
    """kazoo's threading handler, for a client of an ensemble of ``servers`` servers. Before each connection, it calls
    ``connecting``, which returns the TLS context, or None for a connection without TLS."""

    def __init__(self, servers: int = 1, connecting: Callable[[], ssl.SSLContext | None] = lambda: None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._servers = servers
        self._connecting = connecting
        self._raised: list[BaseException] = []
        """Exceptions raised by signal handlers, which kazoo caught while sending a request."""
        self._waker: socket.socket | None = None

    def create_connection(self, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        """Connects as kazoo does. ``timeout`` is the session timeout in seconds."""
        each = None if timeout is None else timeout / self._servers
        tls = self._connecting()
        if tls is not None:
            return _secured(kwargs["address"], kwargs["hostname"], each, tls)
        return super().create_connection(*args, timeout=each, **kwargs)  # type: ignore[no-untyped-call]

    def create_socket_pair(self) -> tuple[Any, Any]:
        read, self._waker = super().create_socket_pair()  # type: ignore[no-untyped-call]
        return read, self._waker

    def async_result(self) -> Any:
        """Returns the object that will hold the response to a request."""
        return _Result(self, self._raised)

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], _: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Like :func:`select.select`, but for any number of open files. Raises ``ValueError`` for a closed file."""
        requested: dict[int, int] = {}
        for ones, event in ((readers, select.POLLIN), (writers, select.POLLOUT)):
            for one in ones:
                requested[one.fileno()] = requested.get(one.fileno(), 0) | event
        polling = select.poll()
        for descriptor, events in requested.items():
            polling.register(descriptor, events)
        reported = dict(polling.poll(None if timeout is None else timeout * 1000))

        def ready(ones: Sequence[Any], event: int) -> list[Any]:
            return [one for one in ones if reported.get(one.fileno(), 0) & (event | _ALWAYS_REPORTED)]

        return ready(readers, select.POLLIN), ready(writers, select.POLLOUT), []

    def sent(self, send: Callable[[], Any]) -> Any:
        """Calls ``send``, which passes requests to kazoo, and returns its result. Raises the exception of a signal
        handler that ran during the call."""
        try:
            result = send()
            self._raise_kept_back()
        except BaseException:
            self._wake()
            raise
        return result

    def _raise_kept_back(self) -> None:
        if self._raised and threading.current_thread() is threading.main_thread():
            first, *_ = self._raised
            self._raised.clear()
            raise first

    def _wake(self) -> None:
        """Makes the connection thread look for another request to send. Harmless if there is none."""
        if self._waker is not None:
            with suppress(OSError):  # already closed
                self._waker.send(b"\0")


def _secured(address: tuple[str, int], host: str, timeout_s: float | None, tls: ssl.SSLContext) -> ssl.SSLSocket:
    connection = socket.create_connection(address, timeout_s)
    try:
        for level, option in ((socket.IPPROTO_TCP, socket.TCP_NODELAY), (socket.SOL_SOCKET, socket.SO_KEEPALIVE)):
            connection.setsockopt(level, option, 1)
        return tls.wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise


class _Result(AsyncResult):
    """kazoo's result, except that it sets aside a signal handler's exception instead of failing the request."""

    def __init__(self, handler: KazooHandler, raised: list[BaseException]) -> None:
        super().__init__(handler)  # type: ignore[no-untyped-call]
        self._raised = raised

    def set_exception(self, exception: Exception) -> None:
        caught = sys.exc_info()[1]
        if caught is None or isinstance(caught, Exception) or not _caught_by(sys._getframe(1), caught):
            super().set_exception(exception)  # type: ignore[no-untyped-call]
        else:
            self._raised.append(caught)


def _caught_by(frame: FrameType, error: BaseException) -> bool:
    """Returns whether ``frame`` itself, rather than one of its callers, is handling the error. A caller may send a
    request while it handles an error of its own."""
    return error.__traceback__ is not None and error.__traceback__.tb_frame is frame
