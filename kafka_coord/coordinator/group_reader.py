"""Takes groups from the queue and reads them. Idle groups only get a quick check; all others get a full snapshot."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from kafka_coord.coordinator.catalog import TopicCatalog
from kafka_coord.coordinator.idle import IdleGroups
from kafka_coord.coordinator.memory import GroupMemories, GroupMemory
from kafka_coord.coordinator.observe import GroupQuery, Snapshot, observe
from kafka_coord.coordinator.operator_requests import PendingRequests
from kafka_coord.coordinator.options import CoordinatorOptions
from kafka_coord.coordinator.queue import RebalanceRequestQueue
from kafka_coord.errors import StoreError
from kafka_coord.zk.store import Store

log = logging.getLogger(__name__)

GROUPS_AT_ONCE = 16
"""The maximum number of groups read at once."""
IDLE_CHECKS_AT_ONCE = 128
"""The maximum number of idle groups checked together."""

SnapshotResult = Snapshot | Exception | None
"""The result of reading one group: ``None`` if the group does not exist, and an error if it cannot be read."""


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Groups taken from the queue together. If ``idle``, they are only checked for changes."""

    memories: tuple[GroupMemory, ...]
    idle: bool


@dataclass(eq=False)
class GroupReader:
    """Takes groups from the queue and reads them, on the handler's thread."""

    _store: Store
    _queue: RebalanceRequestQueue
    _requests: PendingRequests
    _catalog: TopicCatalog
    _memories: GroupMemories
    _idle: IdleGroups
    _options: CoordinatorOptions
    _epoch: int

    def take(self, timeout_s: float) -> ReadBatch | None:
        """Returns the groups that are due, waiting up to ``timeout_s`` for the first. Returns ``None`` if none is
        due."""
        first = self._queue.take(timeout_s)
        if first is None:
            return None
        idle = self._may_be_idle(first)
        groups = {first: self._queue.last_requested}
        most = IDLE_CHECKS_AT_ONCE if idle else GROUPS_AT_ONCE
        while len(groups) < most and (other := self._queue.take_now()) is not None:
            if other in groups:  # an event requested the group again after it was taken
                self._queue.request(other)
                break
            if self._may_be_idle(other) != idle:
                if self._queue.last_was_calm:
                    self._queue.put_back(other)
                else:
                    self._queue.request(other)
                break
            groups[other] = self._queue.last_requested
        memories = tuple(self._memories.of(group) for group in groups)
        now = self._store.clock.monotonic()
        for memory, requested in zip(memories, groups.values(), strict=True):
            memory.requested, memory.taken = requested, now
        return ReadBatch(memories, idle)

    def _may_be_idle(self, group: str) -> bool:
        """Returns whether the group only needs a check for changes, not a full pass. The group must be the last one
        taken."""
        return (
            self._queue.last_was_calm
            and self._idle.is_idle(self._memories.of(group))
            and not self._requests.of_group(group)
        )

    def snapshots(self, memories: Sequence[GroupMemory]) -> list[SnapshotResult]:
        """Returns complete snapshots. If reading all groups together fails unexpectedly, reads each group on its
        own."""
        try:
            return list(self._observe(memories))
        except StoreError as error:
            return [error] * len(memories)
        except Exception as error:  # noqa: BLE001  re-raised and logged when the group is handled
            if len(memories) == 1:
                return [error]
        return [result for memory in memories for result in self.snapshots([memory])]

    def _observe(self, memories: Sequence[GroupMemory]) -> Sequence[SnapshotResult]:
        queries = []
        for memory in memories:
            requests = self._requests.of_group(memory.group)
            queries.append(
                GroupQuery(
                    memory,
                    self._catalog.topics,
                    requests,
                    with_history=bool(requests) and memory.history is None,
                    with_zxids=self._idle.wants_zxids(memory),
                )
            )
        return observe(self._store, queries, epoch=self._epoch, options=self._options)
