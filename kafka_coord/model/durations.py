"""A histogram of durations, as in Prometheus. One thread writes it, and any thread may read it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The bucket bounds, which range from a request answered from memory (about 1 ms) to a rebalance that waits for slow
consumers (minutes)."""


@dataclass(slots=True)
class Durations:
    """A histogram of durations. Each of the ``buckets`` counts the durations above the previous bound in
    :data:`BOUNDS_S`, up to and including its own bound. The last bucket counts all longer durations. ``total_s`` is the
    sum of all durations."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    total_s: float = 0.0

    def add(self, took_s: float) -> None:
        self.buckets[bisect_left(BOUNDS_S, took_s)] += 1
        self.total_s += took_s

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """Yields each upper bound with the number of durations up to it. The last bound is ``+Inf``."""
        return zip((*map(str, BOUNDS_S), "+Inf"), accumulate(self.buckets), strict=True)
