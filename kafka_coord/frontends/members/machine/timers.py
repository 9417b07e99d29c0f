"""Runs the machine's timers, on a clock that advances only while the gateway serves its members."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from kafka_coord.frontends.members.machine.state import MemberState

LONGEST_STEP_S = 0.5
"""The longest normal time from the start of one step to the start of the next, in seconds. If a step takes longer, the
gateway counts as stalled."""


class AttentiveClock:
    """A clock that runs only while the gateway serves its members. It stands still while the gateway is stalled for any
    reason (such as a frozen process, or a slow ZooKeeper in the middle of a step), and while this instance may have
    been deposed.

    At such times, members' input may go unread, so their session timeouts must not run.
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
        """Converts the monotonic time ``now`` to this clock."""
        return now - self._stood_still_s

    def monotonic(self, at: float) -> float:
        """Returns the monotonic time at which this clock will show ``at``, unless the gateway stalls before then."""
        return at + self._stood_still_s


class Timers:
    """A queue of timers, each with a member and a due time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, MemberState]] = []
        self._order = itertools.count()

    def add(self, at: float, member: MemberState) -> None:
        heapq.heappush(self._heap, (at, next(self._order), member))

    def next_at(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")

    def due(self, now: float) -> Iterator[tuple[float, MemberState]]:
        """Removes the timers that are due, and yields each one's due time and member."""
        while self._heap and self._heap[0][0] <= now:
            at, _, member = heapq.heappop(self._heap)
            yield at, member
