"""Calls ZooKeeper: waits for a connection, sends a request, and waits for the response, all before one deadline.

kazoo's own synchronous calls are not used, because they block indefinitely while the connection is down. A write that
misses its deadline may still be sent when the connection returns, but never after a later read in the same session,
because a session's requests are served in order. Reading back therefore resolves the outcome.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kazoo.exceptions import ConnectionLoss
from kazoo.exceptions import UnimplementedError as Unimplemented

from kafka_coord.errors import NoNode, RequestTooLarge, SessionLost, StoreError, StoreUnavailable
from kafka_coord.zk.kazoo_private import KazooHandler, is_answer, translated
from kafka_coord.zk.kazoo_session import KazooSession
from kafka_coord.zk.store import Clock, SessionState

PIPELINED = 500
"""The maximum number of outstanding requests in a pipeline."""
_LARGE = 100_000


class Unsupported(StoreError):
    """The server or kazoo does not support a request. The caller falls back to another request."""


@dataclass(eq=False)
class Calls:
    """Sends requests on behalf of one session. Thread-safe."""

    _session: KazooSession
    _handler: KazooHandler
    _clock: Clock
    _servers: str
    _timeout_s: float
    _max_request_bytes: int
    _dropped_at: int = 0
    """The size of the last large request on which the connection broke, or 0."""
    _pid: int = field(default_factory=os.getpid)

    def ask(
        self, doing: str, path: str, send: Callable[[], Any], *, through_leader: bool = False, size: int = 0
    ) -> Any:
        """Sends one request and returns its response, all before a single deadline."""
        deadline = self._ready(doing, path)
        sent_at = self._clock.monotonic()
        result = self._handler.sent(send)
        return self._await(result, doing, path, sent_at, deadline, through_leader=through_leader, size=size)

    def _ready(self, doing: str, path: str) -> float:
        """Waits for a connection. Returns the call's deadline."""
        started = self._clock.monotonic()
        if os.getpid() != self._pid:
            raise StoreUnavailable(
                f"{doing} {path}: process {self._pid} opened this ZooKeeper session and this process is its child: "
                "open a new session after fork()",
                path,
            )
        if self._session.state is not SessionState.CONNECTED and not self._session.wait_connected(self._timeout_s):
            if self._session.state is SessionState.CLOSED:
                raise SessionLost(f"{doing} {path}: the ZooKeeper session was closed; nothing was sent", path)
            raise StoreUnavailable(
                f"{doing} {path}: not connected to ZooKeeper at {self._servers} for "
                f"{self._clock.monotonic() - (self._session.suspended_since or started):.1f} s; nothing was sent",
                path,
            )
        return started + self._timeout_s

    def _await(
        self,
        result: Any,
        doing: str,
        path: str,
        sent_at: float,
        deadline: float,
        *,
        through_leader: bool,
        size: int = 0,
    ) -> Any:
        if result is None:
            raise Unsupported(f"{doing} {path}: this version of kazoo cannot send this request", path)
        try:
            response = result.get(timeout=max(0.0, deadline - self._clock.monotonic()))
        except Unimplemented as error:
            self._session.record_answer(sent_at, through_leader=False)
            raise Unsupported(f"{doing} {path}: this ZooKeeper server does not support the request", path) from error
        except Exception as error:
            if is_answer(error):
                self._session.record_answer(sent_at, through_leader=through_leader)
            raise self._translated(error, doing, path, size) from error
        self._session.record_answer(sent_at, through_leader=through_leader)
        if size >= self._dropped_at:
            self._dropped_at = 0
        return response

    def _translated(self, error: Exception, doing: str, path: str, size: int) -> StoreError:
        """Translates kazoo's error to this project's. A broken connection may mean that the request was too long: a
        server that gets a request longer than its ``jute.maxbuffer`` drops the connection without giving a reason. The
        first break could have any cause, so the outcome counts as unknown. If the connection breaks again on a request
        that is at least as long, the error names the size as the cause."""
        hint = ""
        if size >= _LARGE and isinstance(error, ConnectionLoss):
            if 0 < self._dropped_at <= size:
                return RequestTooLarge(
                    f"{doing} {path}: the connection broke twice on a request of {size} bytes: the servers' "
                    "jute.maxbuffer is probably lower; raise it there, or lower max_request_bytes here to match",
                    path,
                )
            self._dropped_at = size
            hint = f" (the request was {size} bytes long: if this happens again, check the servers' jute.maxbuffer)"
        return translated(error, doing, path, hint)

    def check_size(self, size: int, doing: str, path: str) -> None:
        if size > self._max_request_bytes:
            raise RequestTooLarge(
                f"{doing} {path}: {size} bytes exceed the limit of {self._max_request_bytes} for one request "
                "(jute.maxbuffer); nothing was sent",
                path,
            )

    def pipelined(
        self, doing: str, items: Sequence[Any], ask: Callable[[Any], Any], refusals: tuple[type[StoreError], ...] = ()
    ) -> list[Any]:
        """Sends many pipelined requests and returns their responses: ``None`` for a znode that does not exist, and the
        error itself if its type is in ``refusals``. Raises any other error."""
        answers: list[Any] = []
        for start in range(0, len(items), PIPELINED):
            chunk = items[start : start + PIPELINED]
            path = chunk[0] if isinstance(chunk[0], str) else chunk[0].path
            deadline = self._ready(doing, path)
            sent_at = self._clock.monotonic()
            pending = self._handler.sent(partial(_all, ask, chunk))
            for item, result in zip(chunk, pending, strict=True):
                path = item if isinstance(item, str) else item.path
                try:
                    answers.append(self._await(result, doing, path, sent_at, deadline, through_leader=False))
                except NoNode:
                    answers.append(None)
                except refusals as refused:
                    answers.append(refused)
        return answers


def _all(ask: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    return [ask(item) for item in items]
