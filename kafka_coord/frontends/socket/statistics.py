"""A gateway's counters about its consumers. One thread writes them, any thread may read."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

ROUND_TRIP_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


def _none() -> list[int]:
    return [0] * (len(ROUND_TRIP_BOUNDS_S) + 1)


@dataclass(slots=True)
class Statistics:
    """Counts since the process began. ``round_trips`` is a histogram of ping round trips with the upper bounds
    :data:`ROUND_TRIP_BOUNDS_S` (seconds) and one bucket above them; ``round_trips_s`` is their sum."""

    registered: int = 0
    resumed: int = 0
    expired: int = 0
    refused: int = 0
    round_trips: list[int] = field(default_factory=_none)
    round_trips_s: float = 0.0

    def count_round_trip(self, after_s: float) -> None:
        """Counts the round trip of an answered ping."""
        self.round_trips[bisect_left(ROUND_TRIP_BOUNDS_S, after_s)] += 1
        self.round_trips_s += after_s
