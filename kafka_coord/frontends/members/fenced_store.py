"""Provides a store whose writes fail once the epoch (or term) has changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafka_coord.errors import MultiFailed, StoreError
from kafka_coord.zk.fencing import multi_fenced
from kafka_coord.zk.store import ANY_VERSION, Check, Clock, Create, Delete, Op, OpResult, Session, SetData, Stat, Store


def _method(name: str) -> Any:
    """Returns a method that forwards to the wrapped store's method ``name``."""
    return lambda self, *arguments, **named: getattr(self._store, name)(*arguments, **named)


class FencedStore(Store):
    """Wraps another store. Each write goes through :func:`multi_fenced`, so it raises :class:`Fenced` once another
    instance has taken over."""

    def __init__(self, store: Store, fence: Check) -> None:
        self._store = store
        self._fence = fence

    # --- reads -------------------------------------------------------------------------------------------------------

    @property
    def clock(self) -> Clock:
        return self._store.clock

    @property
    def session(self) -> Session:
        return self._store.session

    @property
    def acl_bytes(self) -> int:
        return self._store.acl_bytes

    get, children, exists = map(_method, ("get", "children", "exists"))
    exists_many, children_many, read_many = map(_method, ("exists_many", "children_many", "read_many"))
    arm, watch_gone, follow, unfollow = map(_method, ("arm", "watch_gone", "follow", "unfollow"))
    on_session, sync, ensure_prepared = map(_method, ("on_session", "sync", "ensure_prepared"))

    # --- writes ------------------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        made = self._alone(Create(path, data, ephemeral, sequence))
        return made if isinstance(made, str) else path

    def ensure_path(self, path: str) -> None:
        Store.ensure_path(self, path)  # creates the znodes one by one, each with the fence

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        stat = self._alone(SetData(path, data, version))
        if not isinstance(stat, Stat):
            raise StoreError(f"ZooKeeper returned no stat for the write to {path}", path)
        return stat

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._alone(Delete(path, version))

    def multi(self, ops: Sequence[Op]) -> tuple[OpResult, ...]:
        return multi_fenced(self._store, self._fence, ops)

    def close(self) -> None:
        """Does nothing: the owner of the wrapped store closes it."""

    def _alone(self, op: Op) -> OpResult:
        try:
            return self.multi((op,))[0]
        except MultiFailed as error:
            raise error.cause from error
