"""What is done for many members in one request, so that one of them cannot fail it for the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from kafka_coord.errors import Fenced, StoreError, StoreUnavailable

T = TypeVar("T")


def isolated(items: Sequence[T], do: Callable[[Sequence[T]], None], failed: Callable[[T, StoreError], None]) -> None:
    """Calls ``do`` with all items. Where ZooKeeper refuses that, it is called again with each half, and so on; an item
    that is refused by itself goes to ``failed`` with the reason.

    Raises :class:`Fenced` and :class:`StoreUnavailable`, which concern everybody. ``do`` has to bear being called again
    with items it has dealt with.
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
