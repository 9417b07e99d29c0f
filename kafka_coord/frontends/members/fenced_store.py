"""Provides a store whose writes fail once the epoch (or term) has changed, and requests for many members in which one
member's failure does not affect the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from kafka_coord.errors import Fenced, MultiFailed, StoreError, StoreUnavailable
from kafka_coord.zk.fencing import multi_fenced
from kafka_coord.zk.store import (
    ANY_VERSION,
    Armed,
    Check,
    Clock,
    Create,
    Delete,
    Listing,
    Node,
    Op,
    OpResult,
    Read,
    ReadResult,
    Session,
    SessionListener,
    SetData,
    Stat,
    Store,
    Watcher,
)


class FencedStore(Store):
    """Wraps another store. Each write goes through :func:`multi_fenced`, so it raises :class:`Fenced` once another
    instance has taken over. Every method of :class:`Store` is written out here: none may get past the fence unseen."""

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

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        return self._store.on_session(listener)

    def get(self, path: str, watcher: Watcher | None = None) -> Node:
        return self._store.get(path, watcher)

    def children(self, path: str, watcher: Watcher | None = None) -> tuple[str, ...]:
        return self._store.children(path, watcher)

    def exists(self, path: str, watcher: Watcher | None = None) -> Stat | None:
        return self._store.exists(path, watcher)

    def exists_many(self, paths: Sequence[str], watcher: Watcher | None = None) -> tuple[Stat | None, ...]:
        return self._store.exists_many(paths, watcher)

    def children_many(self, paths: Sequence[str], watcher: Watcher | None = None) -> tuple[Listing | None, ...]:
        return self._store.children_many(paths, watcher)

    def read_many(self, reads: Sequence[Read]) -> tuple[ReadResult, ...]:
        return self._store.read_many(reads)

    def arm(self, children: Sequence[str], data: Sequence[str], watcher: Watcher, reads: Sequence[Read] = ()) -> Armed:
        return self._store.arm(children, data, watcher, reads)

    def watch_gone(self, paths: Sequence[str], watcher: Watcher) -> None:
        self._store.watch_gone(paths, watcher)

    def follow(self, path: str, watcher: Watcher) -> bool:
        return self._store.follow(path, watcher)

    def unfollow(self, path: str, watcher: Watcher) -> None:
        self._store.unfollow(path, watcher)

    def sync(self, path: str = "/") -> None:
        self._store.sync(path)

    def ensure_prepared(self) -> None:
        """Creates the prepared znodes without the fence: they are the same for every instance."""
        self._store.ensure_prepared()

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


T = TypeVar("T")


def isolated(items: Sequence[T], do: Callable[[Sequence[T]], None], failed: Callable[[T, StoreError], None]) -> None:
    """Calls ``do`` with all items. If ZooKeeper refuses them, tries again with each half, and so on. An item that is
    refused on its own is passed to ``failed``, with the reason. ``do`` may get items that it has already handled.

    Raises :class:`Fenced` and :class:`StoreUnavailable`, which affect all items.
    """
    if not items:
        return
    try:
        do(items)
    except (Fenced, StoreUnavailable):
        raise
    except StoreError as error:
        if len(items) == 1:
            failed(items[0], error)
            return
        middle = len(items) // 2
        isolated(items[:middle], do, failed)
        isolated(items[middle:], do, failed)
