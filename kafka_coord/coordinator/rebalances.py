"""Counts the rebalances decided during one period of leadership. The handler's thread writes the counts; any thread may
read them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kafka_coord.model import Cause, Decision, Durations


@dataclass(slots=True)
class Rebalances:
    """The counts since the election. ``settled`` records the time from each decision until every partition had its new
    owner, leaving out decisions that needed no commands."""

    decided: Counter[Cause] = field(default_factory=Counter)
    moved_partitions: int = 0
    settled: Durations = field(default_factory=Durations)

    def count(self, decision: Decision, *, is_new: bool) -> None:
        """Counts a written decision by its most important cause, or adds its duration once it has settled."""
        if is_new:
            self.decided[decision.causes[0]] += 1
            self.moved_partitions += decision.moved
        elif decision.settled_ms is not None:
            self.settled.add(decision.settled_ms / 1000)
