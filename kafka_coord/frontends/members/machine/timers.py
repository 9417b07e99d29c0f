"""When the machine has something to do, in seconds in which the gateway looked after its members."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from kafka_coord.frontends.members.machine.state import MemberState

LONGEST_STEP_S = 0.5
"""From the beginning of one step to that of the next. What it takes longer, the gateway stood still."""


class AttentiveClock:
    """Counts the seconds in which the gateway looked after its members: it stands still while the gateway does,
    whatever keeps it (a frozen process, a slow ZooKeeper in the middle of a step), and while it may be deposed.

    What was sent in that time may not have been read yet: it must count against nobody.
    """

    def __init__(self, now: float) -> None:
        self._stood_still_s = 0.0
        self._began_at = now
        self.leads = True

    def step_began(self, now: float, *, leads: bool) -> None:
        longest = LONGEST_STEP_S if self.leads else 0.0
        self._stood_still_s += max(0.0, now - self._began_at - longest)
        self._began_at, self.leads = now, leads

    def at(self, now: float) -> float:
        """What this clock shows when a monotonic one shows ``now``."""
        return now - self._stood_still_s

    def monotonic(self, at: float) -> float:
        """When, by a monotonic clock, this one shows ``at`` if the gateway does not stand still."""
        return at + self._stood_still_s


class Timers:
    """A moment for each of many members."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, MemberState]] = []
        self._order = itertools.count()

    def add(self, at: float, member: MemberState) -> None:
        heapq.heappush(self._heap, (at, next(self._order), member))

    def next_at(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")

    def due(self, now: float) -> Iterator[tuple[float, MemberState]]:
        """Those whose moment has come, each with that moment; they are timed no more."""
        while self._heap and self._heap[0][0] <= now:
            at, _, member = heapq.heappop(self._heap)
            yield at, member
