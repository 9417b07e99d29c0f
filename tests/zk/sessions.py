"""Sessions for tests: opens and closes stores, ends a session as the server would, and cuts a session off."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from types import TracebackType
from typing import Any, Protocol, Self

from kazoo.client import KazooClient

from kafka_coord.zk.session import KazooStore, connect


class OpenStore(Protocol):
    """Opens a store that is closed when the test ends. The keyword arguments are those of ``connect``."""

    def __call__(self, hosts: str | None = None, **arguments: Any) -> KazooStore: ...


@contextmanager
def opening_stores(hosts: Callable[[], str]) -> Iterator[OpenStore]:
    """An :class:`OpenStore` for ``hosts`` (which is called only if a test names no other hosts)."""
    with ExitStack() as opened:

        def open_one(where: str | None = None, **arguments: Any) -> KazooStore:
            store = connect(where if where is not None else hosts(), **({"session_timeout_ms": 10_000} | arguments))
            opened.callback(store.close)
            return store

        yield open_one


def create_chroot(servers: str, path: str, **arguments: Any) -> str:
    """Creates a chroot. Returns the connect string with it. Keyword arguments are those of ``connect``."""
    with closing(connect(servers, **arguments)) as store:
        store.ensure_path(path)
    return servers + path


def expire(store: KazooStore) -> None:
    """Ends the store's session on the server. Another client takes the session over and closes it."""
    taking_over = KazooClient(",".join(store._where.servers), client_id=store._client.client_id)
    taking_over.start(timeout=30)
    taking_over.stop()
    taking_over.close()


class Wire:
    """A TCP proxy to a server. While it is cut, it passes no data, and neither end is notified."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._sockets: list[socket.socket] = [self._listening]
        self._cut = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._forward, name="test-wire", daemon=True)

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self._listening.getsockname()[1]}"

    def cut(self) -> None:
        self._cut.set()

    def mend(self) -> None:
        self._cut.clear()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join(5)
        self._selector.close()
        for each in self._sockets:
            each.close()

    def _forward(self) -> None:
        while not self._closed.is_set():
            for key, _ in self._selector.select(0.05):
                if self._cut.is_set():
                    self._closed.wait(0.05)
                elif key.fileobj is self._listening:
                    self._accept()
                elif key.fd in self._selector.get_map():  # not if its other end has just closed both
                    self._pass_on(key.fileobj, key.data)

    def _accept(self) -> None:
        near, _ = self._listening.accept()
        far = socket.create_connection(("127.0.0.1", self._target_port))
        self._sockets += [near, far]
        self._selector.register(near, selectors.EVENT_READ, far)
        self._selector.register(far, selectors.EVENT_READ, near)

    def _pass_on(self, source: Any, sink: socket.socket) -> None:
        try:
            data = source.recv(65_536)
            if data:
                sink.sendall(data)
                return
        except OSError:
            pass
        for each in (source, sink):
            self._selector.unregister(each)
            each.close()
