"""A store that loses replies or is slow on the client's side. The server and its writes are real."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka_coord.errors import StoreUnavailable
from kafka_coord.zk.store import Store


class LosingReplies:
    """Passes all calls on, but can raise :class:`StoreUnavailable` for the next call of one operation.

    ``lose_after`` performs the operation and loses its reply, and ``lose_before`` loses the request. ``delay`` loses
    nothing, but runs a function before the next call of the operation.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lose: dict[str, bool] = {}
        self._delayed: dict[str, Callable[[], object]] = {}

    def lose_after(self, operation: str) -> None:
        self._lose[operation] = True

    def lose_before(self, operation: str) -> None:
        self._lose[operation] = False

    def delay(self, operation: str, meanwhile: Callable[[], object]) -> None:
        self._delayed[operation] = meanwhile

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if (meanwhile := self._delayed.pop(name, None)) is not None:
            meanwhile()
        if name not in self._lose:
            return found
        return self._losing(name, found)

    def _losing(self, name: str, perform: Callable[..., Any]) -> Callable[..., Any]:
        def lossy(*arguments: Any, **keywords: Any) -> Any:
            if self._lose.pop(name):
                perform(*arguments, **keywords)
            raise StoreUnavailable(f"{name}: the test lost its reply")

        return lossy
