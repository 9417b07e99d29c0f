"""What kazoo's threads do otherwise here than in kazoo: Ctrl-C is not lost, and waiting costs one system call.

To send a request kazoo wakes its connection thread through a socket, inside a bare ``except`` that turns whatever is
raised there into "Connection has been closed" (``KazooClient._call``, kazoo 2.10 and 2.11). A signal that arrives just
then is often raised just there, because waking the other thread gives the interpreter away: the program that was to
stop is told that its ZooKeeper session is over, and goes on.

A server that does not answer at all (its machine is off, a firewall drops what is sent) is waited for no longer than
the Java client would: the session timeout divided by the number of servers, so that another one can still be reached in
time. kazoo waits for the whole session timeout.

And for each request and its answer kazoo waits five times, each time with an epoll object that it makes and throws
away: up to half of what a request costs (docs/performance.md).
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Sequence
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

_ALWAYS_TOLD = select.POLLERR | select.POLLHUP | select.POLLNVAL


class KazooHandler(SequentialThreadingHandler):
    """kazoo's thread handler for a client of that many servers."""

    def __init__(self, servers: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._servers = servers
        self._raised: list[BaseException] = []
        """What a signal handler raised while the connection thread was woken."""

    def create_connection(self, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        """As kazoo's; ``timeout`` is that of the session, in seconds."""
        each = None if timeout is None else timeout / self._servers
        return super().create_connection(*args, timeout=each, **kwargs)  # type: ignore[no-untyped-call]

    def create_socket_pair(self) -> tuple[Any, Any]:
        read, write = super().create_socket_pair()  # type: ignore[no-untyped-call]
        return read, _Waker(write, self._raised)

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], _: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """As :func:`select.select`, however many files are open. Raises ``ValueError`` for a closed one."""
        wanted: dict[int, int] = {}
        for ones, event in ((readers, select.POLLIN), (writers, select.POLLOUT)):
            for one in ones:
                wanted[one.fileno()] = wanted.get(one.fileno(), 0) | event
        polling = select.poll()
        for descriptor, events in wanted.items():
            polling.register(descriptor, events)
        found = dict(polling.poll(None if timeout is None else timeout * 1000))

        def ready(ones: Sequence[Any], event: int) -> list[Any]:
            return [one for one in ones if found.get(one.fileno(), 0) & (event | _ALWAYS_TOLD)]

        return ready(readers, select.POLLIN), ready(writers, select.POLLOUT), []

    def raise_interrupt(self) -> None:
        """Raises what was kept back; to be called by whoever sent a request, once it is sent."""
        if self._raised and threading.current_thread() is threading.main_thread():
            raise self._raised.pop()


class _Waker:
    """The writing end of kazoo's pair of sockets."""

    def __init__(self, wrapped: socket.socket, raised: list[BaseException]) -> None:
        self._wrapped = wrapped
        self._raised = raised

    def send(self, data: bytes) -> int:
        try:
            return self._wrapped.send(data)
        except Exception:
            raise  # the socket's own trouble is kazoo's business
        except BaseException as raised:  # noqa: BLE001  KeyboardInterrupt, SystemExit: only ever on the main thread
            self._raised.append(raised)
            return len(data)

    def close(self) -> None:
        self._wrapped.close()
