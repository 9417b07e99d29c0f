"""Handles many members in one request, without letting one member's failure affect the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from kafka_coord.errors import Fenced, StoreError, StoreUnavailable

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
