"""A real store that can lose replies: the write takes effect, but the caller gets an error with an unknown outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kafka_coord.errors import StoreUnavailable
from kafka_coord.zk.store import Op, OpResult, Store


class LossyStore:
    """Passes all calls on to ``store``. ``lose_reply_of`` chooses multis whose reply is lost."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lose: Callable[[Sequence[Op]], bool] | None = None
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def lose_reply_of(self, chosen: Callable[[Sequence[Op]], bool]) -> None:
        """Loses the reply of the next chosen multi."""
        self._lose = chosen

    def multi(self, ops: Sequence[Op]) -> tuple[OpResult, ...]:
        results = self._store.multi(ops)
        if self._lose is not None and self._lose(ops):
            self._lose = None
            self.lost += 1
            raise StoreUnavailable("the answer was lost by the test")
        return results
