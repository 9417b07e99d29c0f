"""Znodes that are followed on one connection: who hears what is made and deleted right below them.

All but :meth:`Following.forget` happens on kazoo's connection thread, and watchers are called on the thread that calls
all of kazoo's; but for the last word, that the connection broke.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from kazoo.client import KazooClient
from kazoo.protocol.connection import CREATED_EVENT, DELETED_EVENT
from kazoo.protocol.states import Callback

from kafka_coord.zk import kazoo_private
from kafka_coord.zk.store import SessionState, Watcher, WatchEvent, WatchType

_TOLD = {CREATED_EVENT: WatchType.CREATED, DELETED_EVENT: WatchType.DELETED}


class Following:
    """``relative`` gives the path that watchers know of a path on the server."""

    def __init__(self, client: KazooClient, relative: Callable[[str], str]) -> None:
        self._client = client
        self._relative = relative
        self._lock = threading.Lock()
        self._followed: dict[str, tuple[Watcher, ...]] = {}
        self.possible = kazoo_private.on_watch_events(client, self._happened)
        """Whether this kazoo lets events be seen."""

    def remember(self, path: str, watcher: Watcher) -> None:
        """From now on ``watcher`` is told of ``path`` (on the server)."""
        with self._lock:
            watchers = self._followed.get(path, ())
            if watcher not in watchers:
                self._followed[path] = (*watchers, watcher)

    def forget(self, path: str, watcher: Watcher) -> None:
        """Tells ``watcher`` no more."""
        with self._lock:
            left = tuple(one for one in self._followed.pop(path, ()) if one != watcher)
            if left:
                self._followed[path] = left

    def session_is(self, state: SessionState) -> None:
        """The server forgets with the connection what it was asked to tell."""
        if state is SessionState.CONNECTED:
            return
        with self._lock:
            followed, self._followed = self._followed, {}
        for path, watchers in followed.items():
            for watcher in watchers:
                watcher(WatchEvent(WatchType.CONNECTION, self._relative(path)))

    def _happened(self, kind: int, path: str) -> None:
        told = _TOLD.get(kind)
        if told is None or not self._followed:
            return
        for followed in (path, path.rpartition("/")[0] or "/"):
            for watcher in self._followed.get(followed, ()):
                event = WatchEvent(told, self._relative(path))
                self._client.handler.dispatch_callback(Callback("watch", watcher, (event,)))
