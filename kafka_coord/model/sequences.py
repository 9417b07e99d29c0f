"""Groups and splits sequences, formats them as text, and counts durations in a histogram, as in Prometheus. Does no
I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
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


BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The bucket bounds, which range from a request answered from memory (about 1 ms) to a rebalance that waits for slow
consumers (minutes)."""


@dataclass(slots=True)
class Durations:
    """A histogram of durations. One thread writes it, and any thread may read it. Each of the ``buckets`` counts the
    durations above the previous bound in :data:`BOUNDS_S`, up to and including its own bound. The last bucket counts
    all longer durations. ``total_s`` is the sum of all durations."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    total_s: float = 0.0

    def add(self, took_s: float) -> None:
        self.buckets[bisect_left(BOUNDS_S, took_s)] += 1
        self.total_s += took_s

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """Yields each upper bound with the number of durations up to it. The last bound is ``+Inf``."""
        return zip((*map(str, BOUNDS_S), "+Inf"), accumulate(self.buckets), strict=True)
