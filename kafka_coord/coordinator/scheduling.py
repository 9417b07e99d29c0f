"""Schedules a group's next pass: after an acknowledgement, when a timer expires, after a failure, and periodically."""

from __future__ import annotations

import logging

from kafka_coord.coordinator.decision_writer import PreparedPlan
from kafka_coord.coordinator.execute import NewCommands
from kafka_coord.coordinator.idle import spread
from kafka_coord.coordinator.memory import GroupMemory
from kafka_coord.coordinator.options import CoordinatorOptions
from kafka_coord.coordinator.queue import RebalanceRequestQueue
from kafka_coord.coordinator.steps import AT_REST
from kafka_coord.errors import MultiFailed, StoreError, StoreUnavailable
from kafka_coord.model import Observation
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store, WatchEvent, WatchType

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
