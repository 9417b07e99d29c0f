"""A clock that tests set by hand."""

from __future__ import annotations


class ManualClock:
    """Implements :class:`kafka_coord.zk.store.Clock`. Only the test advances it."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_700_000_000.0 + self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
