"""Runs the machine's timers."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from kafka_coord.frontends.members.machine.state import MemberState


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
