"""The rebalance request queue: the groups that need a pass, each at most once, in order of their events."""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Set

from kafka_coord.zk.store import Clock

CALM_EVERY = 8


class RebalanceRequestQueue:
    """The original design's ``groups_being_rebalanced`` and ``rebalance_request_queue``, with timers.

    An event sets a group's bit and, if it was clear, enqueues the group. While the bit is set, further events have no
    effect. The handler takes a group, **clears the bit, then reads**. An event during the pass enqueues the group
    again, so no event is lost. A busy group goes to the end of the queue, so no other group starves.

    A group is called *calm* if it is due only because time has passed, or because it was at rest when this instance was
    elected. Groups with an event usually go first, but every :data:`CALM_EVERY`-th group taken is a calm one.
    Thread-safe. Only :meth:`take` blocks.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self.groups_being_rebalanced: set[str] = set()
        self._rebalance_request_queue: deque[str] = deque()
        self._calm: dict[str, None] = {}
        self._happened: set[str] = set()
        """The groups whose next timer was set because of an event."""
        self._taken = 0
        self.last_was_calm = False
        """Whether the last group taken was calm. Only the thread that takes groups may read it."""
        self.last_requested: float | None = None
        """The (monotonic) time of the event that enqueued the last group taken. Only the thread that takes groups may
        read it."""
        self._requested: dict[str, float] = {}
        self._timers: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}
        self._closed = False

    def request(self, group: str) -> None:
        """Sets the group's bit and enqueues it if the bit was clear."""
        with self._changed:
            if self._closed or (group in self.groups_being_rebalanced and group not in self._calm):
                return
            self._calm.pop(group, None)
            self._happened.discard(group)
            self.groups_being_rebalanced.add(group)
            self._rebalance_request_queue.append(group)
            self._requested[group] = self._clock.monotonic()
            self._changed.notify()

    def put_back(self, group: str) -> None:
        """Puts a calm group back, behind the other calm groups."""
        with self._changed:
            if not self._closed and group not in self.groups_being_rebalanced:
                self.groups_being_rebalanced.add(group)
                self._calm[group] = None

    def calm(self, groups: Set[str]) -> None:
        """Marks those of the given groups that are enqueued as calm, so that other groups usually go first."""
        with self._changed:
            enqueued, self._rebalance_request_queue = self._rebalance_request_queue, deque()
            for group in enqueued:
                if group in groups:
                    self._calm[group] = None
                else:
                    self._rebalance_request_queue.append(group)

    def request_at(self, group: str, due: float, *, event: bool = False) -> None:
        """Enqueues the group at the (monotonic) time ``due``, or earlier if an earlier time is already set. With
        ``event``, the timer counts as an event, so the group is not calm."""
        with self._changed:
            if event and not self._closed:
                self._happened.add(group)
            if self._closed or self._due.get(group, float("inf")) <= due:
                return
            self._due[group] = due
            heapq.heappush(self._timers, (due, group))
            self._changed.notify()

    def take_now(self) -> str | None:
        """Takes the next group and clears its bit. Returns ``None`` if no group is due. Never blocks."""
        with self._changed:
            return self._next()

    def take(self, timeout_s: float) -> str | None:
        """Like :meth:`take_now`, but waits up to ``timeout_s`` for a group."""
        deadline = self._clock.monotonic() + timeout_s
        with self._changed:
            while True:
                group = self._next()
                now = self._clock.monotonic()
                if group is not None or self._closed or now >= deadline:
                    return group
                until = min(deadline, self._timers[0][0]) if self._timers else deadline
                self._changed.wait(max(0.0, until - now))

    def next_due(self) -> float | None:
        """Returns the (monotonic) time at which the next group is due, or ``None`` if only an event can make a group
        due."""
        with self._changed:
            if self._rebalance_request_queue or self._calm:
                return self._clock.monotonic()
            return self._timers[0][0] if self._timers else None

    def __len__(self) -> int:
        return len(self._rebalance_request_queue) + len(self._calm)  # reading two lengths does not need a lock

    def close(self) -> None:
        """Closes the queue and wakes the waiting thread. From then on, no group is taken or enqueued."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _next(self) -> str | None:
        if self._closed:
            return None
        now = self._clock.monotonic()
        while self._timers and self._timers[0][0] <= now:
            due, group = heapq.heappop(self._timers)
            if self._due.get(group) != due:
                continue  # an earlier time was set after this one
            del self._due[group]
            if group in self._happened:
                self._happened.discard(group)
                if group not in self.groups_being_rebalanced or group in self._calm:
                    self._calm.pop(group, None)
                    self.groups_being_rebalanced.add(group)
                    self._rebalance_request_queue.append(group)
            elif group not in self.groups_being_rebalanced:
                self.groups_being_rebalanced.add(group)
                self._calm[group] = None
        if not self._rebalance_request_queue and not self._calm:
            return None
        self._taken += 1
        calm = bool(self._calm) and (not self._rebalance_request_queue or self._taken % CALM_EVERY == 0)
        if calm:
            group = next(iter(self._calm))
            del self._calm[group]
        else:
            group = self._rebalance_request_queue.popleft()
        self.groups_being_rebalanced.discard(group)
        self.last_was_calm = calm
        self.last_requested = self._requested.pop(group, None)
        return group
