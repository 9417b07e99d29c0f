"""Persistent watches on one connection, which report znodes created or deleted directly below a path.

Only kazoo's connection thread changes entries, apart from :meth:`PersistentWatches.forget`. Kazoo's callback thread
calls the watchers, but the last event, which reports that the connection broke, may arrive on another thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from kazoo.client import KazooClient
from kazoo.protocol.connection import CREATED_EVENT, DELETED_EVENT
from kazoo.protocol.states import Callback

from kafka_coord.zk import kazoo_private
from kafka_coord.zk.store import SessionState, Watcher, WatchEvent, WatchType

_UNANSWERED = 3
"""After this many unanswered requests in a row, no more are sent in that session, and only one in each later
session."""

_TYPES = {CREATED_EVENT: WatchType.CREATED, DELETED_EVENT: WatchType.DELETED}


class PersistentWatches:
    """The persistent watches of one client. ``relative`` removes the chroot from a path on the server."""

    def __init__(self, client: KazooClient, relative: Callable[[str], str]) -> None:
        self._client = client
        self._relative = relative
        self._lock = threading.Lock()
        self._followed: dict[str, tuple[Watcher, ...]] = {}
        self._possible = kazoo_private.on_watch_events(client, self._happened)
        self._refused_in = 0
        self._unanswered = 0

    def may_be_asked_for(self, session_id: int) -> bool:
        """Returns whether the server may be asked for persistent watches in the given session: this version of kazoo
        exposes its events, and no server has refused such a request in that session."""
        return self._possible and self._refused_in != session_id

    def accepted(self) -> None:
        """Records that the server accepted the request to watch."""
        self._unanswered = 0

    def refused(self, session_id: int) -> None:
        """Records that the server refused the request to watch."""
        self._refused_in = session_id

    def unanswered(self, session_id: int) -> None:
        """Records that there was no response. A server may drop the connection when it does not support a request."""
        self._unanswered += 1
        if self._unanswered >= _UNANSWERED:
            self._refused_in = session_id

    def remember(self, path: str, watcher: Watcher) -> None:
        """Starts passing events for ``path`` (absolute on the server) to ``watcher``."""
        with self._lock:
            watchers = self._followed.get(path, ())
            if watcher not in watchers:
                self._followed[path] = (*watchers, watcher)

    def forget(self, path: str, watcher: Watcher) -> None:
        """Stops passing events to ``watcher``."""
        with self._lock:
            left = tuple(one for one in self._followed.pop(path, ()) if one != watcher)
            if left:
                self._followed[path] = left

    def session_is(self, state: SessionState) -> None:
        """If the connection has ended, drops all watches, as the server does, and notifies the watchers."""
        if state is SessionState.CONNECTED:
            return
        with self._lock:
            followed, self._followed = self._followed, {}
        for path, watchers in followed.items():
            for watcher in watchers:
                watcher(WatchEvent(WatchType.CONNECTION, self._relative(path)))

    def _happened(self, kind: int, path: str) -> None:
        watch_type = _TYPES.get(kind)
        if watch_type is None or not self._followed:
            return
        for followed in (path, path.rpartition("/")[0] or "/"):
            for watcher in self._followed.get(followed, ()):
                event = WatchEvent(watch_type, self._relative(path))
                self._client.handler.dispatch_callback(Callback("watch", watcher, (event,)))
