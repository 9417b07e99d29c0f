"""Znodes that are followed on one connection: who hears what is made and deleted right below them.

What is followed changes on kazoo's connection thread, but for :meth:`Following.forget`, and watchers are called on the
thread that calls all of kazoo's; but for the last word, that the connection broke.
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
"""After so many requests without an answer, one after the other, no more is sent in that session, and in each one that
comes after it a single one."""

_TOLD = {CREATED_EVENT: WatchType.CREATED, DELETED_EVENT: WatchType.DELETED}


class Following:
    """``relative`` gives the path that watchers know of a path on the server."""

    def __init__(self, client: KazooClient, relative: Callable[[str], str]) -> None:
        self._client = client
        self._relative = relative
        self._lock = threading.Lock()
        self._followed: dict[str, tuple[Watcher, ...]] = {}
        self._possible = kazoo_private.on_watch_events(client, self._happened)
        self._refused_in = 0
        self._unanswered = 0

    # --- whether it can be had ---------------------------------------------------------------------------------------

    def may_be_asked_for(self, session_id: int) -> bool:
        """Whether this kazoo lets events be seen, and no server has refused to tell them in this session."""
        return self._possible and self._refused_in != session_id

    def answered(self) -> None:
        """A server follows."""
        self._unanswered = 0

    def refused(self, session_id: int) -> None:
        """A server does not."""
        self._refused_in = session_id

    def unanswered(self, session_id: int) -> None:
        """There was no answer: perhaps a server that hangs up on what it does not know."""
        self._unanswered += 1
        if self._unanswered >= _UNANSWERED:
            self._refused_in = session_id

    # --- what is followed --------------------------------------------------------------------------------------------

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
