"""A store that loses replies, at the edge: the server behind it is real, and so is what it did or did not do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka_coord.errors import StoreUnavailable
from kafka_coord.zk.store import Store


class LosingReplies:
    """Passes everything on, but for the next call of one operation raises :class:`StoreUnavailable`.

    ``lose_after`` performs the operation and loses its reply, ``lose_before`` loses the request.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lose: dict[str, bool] = {}

    def lose_after(self, operation: str) -> None:
        self._lose[operation] = True

    def lose_before(self, operation: str) -> None:
        self._lose[operation] = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in self._lose:
            return found
        return self._losing(name, found)

    def _losing(self, name: str, perform: Callable[..., Any]) -> Callable[..., Any]:
        def lossy(*arguments: Any, **keywords: Any) -> Any:
            if self._lose.pop(name):
                perform(*arguments, **keywords)
            raise StoreUnavailable(f"{name}: the test lost its reply")

        return lossy
