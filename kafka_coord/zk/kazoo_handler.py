"""A thread handler for kazoo that differs from kazoo's own in how it treats signals, silent servers and waiting.

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

import select
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler

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
