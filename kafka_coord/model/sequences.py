"""Groups and splits sequences, and formats them as text. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")


def grouped(found: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Maps each key to its items. The items keep their order."""
    groups: dict[K, list[T]] = {}
    for one in found:
        groups.setdefault(key(one), []).append(one)
    return groups


def parts(found: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Yields the sequence in parts of at most ``most`` items."""
    return (found[at : at + most] for at in range(0, len(found), most))


def some(names: Sequence[object], most: int = 5) -> str:
    """Returns ``a, b, c and 4 more``, with at most ``most`` names."""
    shown = ", ".join(map(str, names[:most]))
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
