"""Keeps Ctrl-C from being lost in kazoo.

To send a request kazoo wakes its connection thread through a socket, inside a bare ``except`` that turns whatever is
raised there into "Connection has been closed" (``KazooClient._call``, kazoo 2.10 and 2.11). A signal that arrives just
then is often raised just there, because waking the other thread gives the interpreter away: the program that was to
stop is told that its ZooKeeper session is over, and goes on.
"""

from __future__ import annotations

import socket
import threading
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler


class InterruptibleHandler(SequentialThreadingHandler):
    """kazoo's thread handler, remembering what a signal handler raised while the connection thread was woken."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._raised: list[BaseException] = []

    def create_socket_pair(self) -> tuple[Any, Any]:
        read, write = super().create_socket_pair()  # type: ignore[no-untyped-call]
        return read, _Waker(write, self._raised)

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
