"""Takes groups from the queue and reads them. Idle groups only get a quick check. Of all others, it reads the images,
usually in one or two multi-reads, and finds out which deadlines have passed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kafka_coord.coordinator.deadlines import CoordinatorOptions, DeadlineInputs, deadlines, slow_commands
from kafka_coord.coordinator.history import past_decisions
from kafka_coord.coordinator.idle import IdleGroups
from kafka_coord.coordinator.image import Image, Snapshot, Wanted, read_images
from kafka_coord.coordinator.memory import GroupMemories, GroupMemory, TopicCatalog
from kafka_coord.coordinator.offset_expiry import retention_in
from kafka_coord.coordinator.pending_requests import PendingRequests
from kafka_coord.coordinator.queue import RebalanceRequestQueue
from kafka_coord.coordinator.tolerant_reads import read_each
from kafka_coord.errors import MalformedValue, StoreError
from kafka_coord.model import GroupKind, Pause, Request, TopicInfo
from kafka_coord.model.offsets import Retention
from kafka_coord.zk import layout
from kafka_coord.zk.kinds import read_kinds
from kafka_coord.zk.store import GetData, Store

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


@dataclass(frozen=True, slots=True)
class GroupQuery:
    """A group to read, and what is already known about it. ``with_history`` also requests the group's past decisions,
    because the next decision is appended to them. ``with_zxids`` also requests the zxids of the group's state."""

    memory: GroupMemory
    topics: Mapping[str, TopicInfo]
    requests: Sequence[Request]
    with_history: bool = False
    with_zxids: bool = False


def observe(
    store: Store, queries: Sequence[GroupQuery], *, epoch: int, options: CoordinatorOptions
) -> list[Snapshot | StoreError | None]:
    """Reads several groups together (see :func:`~kafka_coord.coordinator.image.read_images`). If a group may be empty,
    a further request reads the brokers' retention. Returns ``None`` for a group that does not exist, and the error for
    a group that cannot be read. Raises :class:`StoreUnavailable` if nothing could be read.

    Malformed znodes are listed in ``observation.unreadable`` and otherwise treated as absent.
    """
    now = store.clock.monotonic()
    wanted = [
        Wanted(
            one.memory.group,
            one.memory.known,
            slow=slow_commands(one.memory.timers, now),
            history=one.with_history,
            zxids=one.with_zxids,
        )
        for one in queries
    ]
    images = read_images(store, wanted, everywhere=True)
    may_be_empty = any(not one.registered and not one.ledgers for one in images.values())
    retention = retention_in(read_each(store, [GetData(layout.RETENTION)] if may_be_empty else ()))
    new = [name for name, one in images.items() if one.registered and not (one.assignment and one.assignment.members)]
    others, again = _recorded(store, new)
    images = {name: one for name, one in images.items() if name not in again}
    images |= read_images(store, [one for one in wanted if one.group in again], everywhere=True)
    results: list[Snapshot | StoreError | None] = []
    for query in queries:
        image = images.get(query.memory.group)
        try:
            found = _observed(store, query, image, retention, epoch, options) if image is not None else None
            if found is not None and query.memory.group in others:
                held = replace(found.observation, pause=others[query.memory.group])
                found = replace(found, observation=held)
            results.append(found)
        except StoreError as error:
            results.append(error)
    return results


def _recorded(store: Store, new: Sequence[str]) -> tuple[dict[str, Pause], frozenset[str]]:
    """Returns those of the groups without members in a target that are recorded as groups of another kind (ADR 59), and
    those that are recorded as managed.

    Read after the group's znodes: who records another kind has seen that there were none. Such groups are held, as if
    somebody had paused them. The others must be read again: a conversion registers the members, with what they hold,
    before it records that the group is managed. Raises :class:`StoreError`."""
    try:
        records = read_kinds(store, new) if new else {}
    except MalformedValue as error:
        return dict.fromkeys(new, Pause(reason=str(error))), frozenset()
    why = "the group is recorded as {0}; to serve these consumers, make it managed"
    again = frozenset(name for name, one in records.items() if one.kind is GroupKind.MANAGED)
    others = {name: Pause(reason=why.format(one.kind)) for name, one in records.items() if name not in again}
    return others, again


def _observed(
    store: Store, query: GroupQuery, image: Image, retention: Retention | None, epoch: int, options: CoordinatorOptions
) -> Snapshot:
    image.require_listings()
    memory, target = query.memory, image.assignment
    memory.known = image.known
    due = deadlines(
        DeadlineInputs(
            *(image.members, image.registered, image.ledgers, image.channels, target, image.settings, retention),
            holds=image.holds,
            departures=image.departures,
        ),
        memory.timers,
        options,
        store.clock.monotonic(),
        store.clock.time() * 1000,
    )
    nothing_kept, memory.nothing_kept = memory.nothing_kept, False
    observation = replace(
        image.observation(epoch, query.topics),
        requests=tuple(query.requests),
        in_grace=due.in_grace,
        overdue=due.overdue,
        retired=due.retired,
        retention_passed=due.retention_passed,
        holds_over=due.holds_over,
        nothing_kept=nothing_kept,
        generation_floor=_newest_generation(store, image.group) if target is None else 0,
    )
    return Snapshot(observation, image)


def _newest_generation(store: Store, group: str) -> int:
    """Returns the highest generation in the group's history. If the target was lost, the next one must be higher."""
    return max((one.generation for one in past_decisions(store, group)), default=0)
