"""Handles groups at rest, which the coordinator only checks for changes (ADR 12)."""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import Iterable, Mapping, Sequence

from kafka_coord.coordinator.deadlines import CoordinatorOptions
from kafka_coord.coordinator.execute import Executor
from kafka_coord.coordinator.image import Snapshot, unchanged
from kafka_coord.coordinator.memory import AtRest, GroupMemory, TopicCatalog
from kafka_coord.coordinator.steps import Plan
from kafka_coord.errors import Fenced, MultiFailed, StoreError
from kafka_coord.model import Coverage, Settled, Subscription, TopicInfo
from kafka_coord.model.member import interests
from kafka_coord.model.partitions import ranges
from kafka_coord.zk import layout
from kafka_coord.zk.store import Create, SetData, Store

log = logging.getLogger(__name__)

MAX_BYTES = 100_000
"""The maximum size of an at-rest record. A group whose record would be larger is not recorded."""


def spread(group: str) -> float:
    """Returns a factor between 0.75 and 1.25 for the group's intervals, so that not all groups are due at once. A
    group's factor never changes."""
    return 0.75 + zlib.crc32(group.encode()) % 1000 / 2000


class IdleGroups:
    """The groups that this coordinator found at rest, or that an earlier coordinator recorded as such
    (``memory.at_rest``). For use on the handler's thread only, except for :meth:`begin`, which runs before that thread
    starts.

    A group is at rest only while its zxids and topics are the same as when a complete pass found nothing to do.
    """

    def __init__(self, store: Store, catalog: TopicCatalog, options: CoordinatorOptions) -> None:
        self._store = store
        self._catalog = catalog
        self._options = options
        self._digests: dict[frozenset[str] | None, str] = {}
        self._digests_of: Mapping[str, TopicInfo] | None = None

    def begin(self, memory: GroupMemory, settled: Settled) -> None:
        """Adopts an at-rest record that an earlier coordinator wrote."""
        memory.settled_written = settled
        memory.settled_exists = True
        memory.covered = Coverage(settled.subscriptions)
        memory.at_rest = AtRest(settled, None, self._next_whole(memory.group))

    def is_idle(self, memory: GroupMemory) -> bool:
        """Returns whether the group only needs a check for changes, not a full pass."""
        return memory.at_rest is not None and self._store.clock.monotonic() < memory.at_rest.whole_at

    def still_idle(self, memories: Sequence[GroupMemory]) -> list[bool]:
        """Returns, for each group, whether it is still at rest. Raises :class:`StoreError`."""
        try:
            return self._unchanged(memories)
        except StoreError:
            raise
        except Exception:
            log.exception("cannot tell whether groups are at rest groups=%d; reading each group in full", len(memories))
            return [False] * len(memories)

    def _unchanged(self, memories: Sequence[GroupMemory]) -> list[bool]:
        topics = self._catalog.topics  # read before the znodes, so that any later change triggers an event
        asked = [(memory.group, memory.at_rest) for memory in memories if memory.at_rest is not None]
        found = unchanged(self._store, [(group, at_rest.settled.zxids) for group, at_rest in asked])
        for number, (_, at_rest) in enumerate(asked):
            if found[number] and at_rest.topics is not topics:
                found[number] = self._digest(at_rest.settled.subscriptions, topics) == at_rest.settled.topics
                at_rest.topics = topics
        return found

    def wants_zxids(self, memory: GroupMemory) -> bool:
        """Returns whether the group will count as at rest if the next pass finds nothing to do either."""
        since = memory.quiet_since
        return since is not None and self._store.clock.monotonic() >= since + self._options.settled_after_ms / 1000

    def after_pass(self, memory: GroupMemory, snapshot: Snapshot, plan: Plan) -> float | None:
        """Evaluates a complete pass and its plan. Returns when (in monotonic seconds) to check again whether the group
        is at rest, or ``None`` if no check is needed."""
        now = self._store.clock.monotonic()
        if not self._options.settled_after_ms:
            return None
        if not plan.quiet(snapshot.observation):
            memory.mark_active()
            return None
        if snapshot.image.zxids is None:
            memory.at_rest = None
            memory.quiet_since = now if memory.quiet_since is None else memory.quiet_since
            return memory.quiet_since + self._options.settled_after_ms / 1000
        members, topics = snapshot.observation.members, snapshot.observation.topics
        subscriptions = interests(one.subscription for one in members.values())
        settled = Settled(snapshot.image.zxids, self._digest(subscriptions, topics), len(members), subscriptions)
        memory.at_rest = AtRest(settled, topics, self._next_whole(memory.group))
        return None

    def settle(self, executor: Executor, passes: Iterable[tuple[GroupMemory, Snapshot]]) -> None:
        """Records groups as at rest, for the next coordinator. Raises :class:`Fenced`."""
        ops = [(memory, op) for memory, snapshot in passes if (op := self._unwritten(memory, snapshot)) is not None]
        if not ops:
            return
        try:
            self._write(executor, ops)
        except Fenced:
            raise
        except StoreError as error:
            log.info("could not record that groups are at rest groups=%d: %s", len(ops), error)
            for memory, _ in ops:
                memory.invalidate()

    def _unwritten(self, memory: GroupMemory, snapshot: Snapshot) -> Create | SetData | None:
        """Returns the write that records the group as at rest. Returns ``None`` if the group is already recorded or
        must not be recorded."""
        at_rest = memory.at_rest
        if at_rest is None or snapshot.image.zxids is None or memory.settled_written == at_rest.settled:
            return None
        if any(member.gateway is not None for member in snapshot.observation.members.values()):
            return None
        data = at_rest.settled.to_bytes()
        if len(data) > MAX_BYTES:
            return None
        path = layout.settled(memory.group)
        return SetData(path, data) if memory.settled_exists else Create(path, data)

    def _write(self, executor: Executor, ops: Sequence[tuple[GroupMemory, Create | SetData]]) -> None:
        """Writes all records together. If that fails, writes each record separately."""
        try:
            executor.write([[op] for _, op in ops])
        except MultiFailed:
            for memory, op in ops:
                self._write_one(executor, memory, op.data)
        else:
            for memory, _ in ops:
                _took_effect(memory)

    def _write_one(self, executor: Executor, memory: GroupMemory, data: bytes) -> None:
        path = layout.settled(memory.group)
        # someone may have deleted the record, or an earlier write may have succeeded although its response was lost
        exists = self._store.exists(path) is not None
        try:
            executor.write([[SetData(path, data) if exists else Create(path, data)]])
        except MultiFailed as error:
            log.debug("could not record that a group is at rest group=%s reason=%s", memory.group, error)
        else:
            _took_effect(memory)

    def _digest(self, subscriptions: Sequence[Subscription], topics: Mapping[str, TopicInfo]) -> str:
        """Returns a digest of the topics that the target depends on. If any subscription is a pattern, that means every
        topic."""
        if self._digests_of is not topics:
            self._digests_of = topics
            self._digests.clear()
        names: frozenset[str] | None = frozenset(name for one in subscriptions for name in one.topics)
        if any(one.is_wildcard for one in subscriptions):
            names = None
        if names not in self._digests:
            self._digests[names] = topics_digest(topics, names)
        return self._digests[names]

    def _next_whole(self, group: str) -> float:
        return self._store.clock.monotonic() + self._options.whole_look_interval_ms / 1000 * spread(group)


def _took_effect(memory: GroupMemory) -> None:
    memory.settled_exists = True
    if memory.at_rest is not None:
        memory.settled_written = memory.at_rest.settled


def topics_digest(topics: Mapping[str, TopicInfo], wanted: frozenset[str] | None) -> str:
    """Returns a digest of the partitions and identities of the ``wanted`` topics, which need not exist, or of all
    topics if ``wanted`` is ``None``."""
    hashed = hashlib.sha256(b"1\n")
    for name in sorted(topics if wanted is None else wanted):
        topic = topics.get(name)
        state = f"{topic.identity} {ranges(topic.partitions)}" if topic is not None else "absent"
        hashed.update(f"{name} {state}\n".encode())
    return hashed.hexdigest()[:32]
