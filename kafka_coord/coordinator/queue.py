"""When a group gets its next pass: the rebalance request queue, and the scheduler that sets its timers."""

from __future__ import annotations

import heapq
import logging
import threading
from collections import deque
from collections.abc import Set

from kafka_coord.coordinator.deadlines import CoordinatorOptions
from kafka_coord.coordinator.decision_writer import PreparedPlan
from kafka_coord.coordinator.execute import NewCommands
from kafka_coord.coordinator.idle import spread
from kafka_coord.coordinator.memory import GroupMemory
from kafka_coord.coordinator.steps import AT_REST
from kafka_coord.errors import MultiFailed, StoreError, StoreUnavailable
from kafka_coord.model import Observation
from kafka_coord.zk import layout
from kafka_coord.zk.store import Clock, Store, WatchEvent, WatchType

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


log = logging.getLogger(__name__)

_FAILED = {"event": "group_failed"}

GATHER_S = 0.01
"""How long the handler waits after the first of several acknowledgements, in seconds, so that a single pass can handle
several. The last outstanding acknowledgement triggers a pass immediately."""
LOOK_AGAIN_S = 0.5
"""How soon a group with new commands gets another pass, in seconds, if no event triggers one first."""
BLOCKED_FRACTION = 0.05
"""The fraction of the check interval after which a group with an unreadable offset gets another pass. Offsets are not
watched, so this bounds how long a repair goes unnoticed."""
SEVERAL_AT_ONCE = 3
"""How many times in a row a pass is retried immediately because the group changed between read and write."""


class Scheduler:
    """Watches commands and sets the queue's timers, on the handler's thread. Watch callbacks only touch the queue and
    the set of watched commands."""

    def __init__(self, store: Store, queue: RebalanceRequestQueue, options: CoordinatorOptions) -> None:
        self._store = store
        self._queue = queue
        self._options = options

    def written(self, plan: PreparedPlan, commands: NewCommands, rest_due: float | None) -> None:
        """Schedules the group's next pass. ``rest_due`` is the (monotonic) time at which to check again whether the
        group is at rest."""
        memory, now = plan.memory, self._store.clock.monotonic()
        self._watch_for_acknowledgements(memory, plan.snapshot.observation, commands)
        if rest_due is not None:
            self._queue.request_at(memory.group, rest_due)
        if plan.plan.steps:
            if commands or plan.plan.state in AT_REST:
                # a pass before an acknowledgement or another event would not find anything new
                self._queue.request_at(memory.group, now + LOOK_AGAIN_S)
            else:
                self._queue.request(memory.group)
        due = memory.timers.next_due
        if due is not None:
            if memory.at_rest is not None:  # the whole group is read when the timer expires
                memory.at_rest.whole_at = min(memory.at_rest.whole_at, due)
            self._queue.request_at(memory.group, due)
        self.periodic(memory, BLOCKED_FRACTION if plan.plan.blocked else 1.0)

    def periodic(self, memory: GroupMemory, fraction: float = 1.0) -> None:
        """Schedules a pass after ``fraction`` of the check interval, unless an event triggers one sooner."""
        interval_s = self._options.look_interval_ms * spread(memory.group) / 1000
        self._queue.request_at(memory.group, self._store.clock.monotonic() + fraction * interval_s)

    def after_failure(self, memory: GroupMemory, error: Exception) -> None:
        """Schedules a retry. Whatever the failed pass has already written is consistent."""
        memory.failures += 1
        if isinstance(error, MultiFailed):
            log.debug(
                "retrying, because the group changed between read and write group=%s reason='%s'", memory.group, error
            )
            if memory.failures <= SEVERAL_AT_ONCE:
                self._queue.request(memory.group)
                return
        backoff_ms = min(
            self._options.retry_backoff_max_ms, self._options.retry_backoff_ms * 2 ** min(memory.failures - 1, 16)
        )
        if isinstance(error, StoreUnavailable):
            log.info(
                "retrying in %d ms, because ZooKeeper did not respond group=%s reason='%s'",
                *(backoff_ms, memory.group, error),
                extra=_FAILED,
            )
        elif isinstance(error, StoreError):
            log.warning("retrying in %d ms group=%s: %s", backoff_ms, memory.group, error, extra=_FAILED)
        self._queue.request_at(memory.group, self._store.clock.monotonic() + backoff_ms / 1000)

    def _watch_for_acknowledgements(self, memory: GroupMemory, observation: Observation, new: NewCommands) -> None:
        """Watches for the deletion of every outstanding command."""
        group = memory.group
        outstanding = [
            layout.command(group, consumer, command.name)
            for consumer, channel in observation.channels.items()
            if consumer in observation.members
            for command in channel.commands
        ]
        if not outstanding and not new:
            memory.watched_commands = set()
            return
        watched = memory.watched_commands
        unwatched = [path for path in (*outstanding, *new) if path not in watched]
        if not unwatched:
            return

        def fired(event: WatchEvent) -> None:
            watched.discard(event.path)
            if watched and event.type is WatchType.DELETED:  # more acknowledgements may follow; see GATHER_S
                self._queue.request_at(group, self._store.clock.monotonic() + GATHER_S, event=True)
            else:
                self._queue.request(group)

        watched.update(unwatched)
        try:
            self._store.watch_gone(unwatched, fired)
        except StoreError:
            watched.difference_update(unwatched)
            raise
