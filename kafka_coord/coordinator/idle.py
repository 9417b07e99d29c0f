"""Groups at rest: of which nothing is read but whether they still are (ADR 12)."""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kafka_coord.coordinator.catalog import TopicCatalog
from kafka_coord.coordinator.execute import Executor
from kafka_coord.coordinator.memory import AtRest, GroupMemory
from kafka_coord.coordinator.observe import Snapshot, unchanged
from kafka_coord.coordinator.options import CoordinatorOptions
from kafka_coord.coordinator.steps import Plan
from kafka_coord.errors import Fenced, MalformedValue, MultiFailed
from kafka_coord.model import Member, Settled, TopicInfo, Unreadable
from kafka_coord.model import json_fields as fields
from kafka_coord.model.partitions import ranges
from kafka_coord.model.settled import interests
from kafka_coord.zk import layout
from kafka_coord.zk.store import Create, Node, ReadResult, SetData, Store

log = logging.getLogger(__name__)

MAX_BYTES = 100_000
"""A group with more to say of itself is not written down."""


def spread(group: str) -> float:
    """A factor for intervals, from 0.75 to 1.25 and always the same for one group, so that groups do not come due all
    at once."""
    return 0.75 + zlib.crc32(group.encode()) % 1000 / 2000


def decode_settled(where: str, found: ReadResult | Unreadable) -> Settled | None:
    """``None`` where there is none that can be read: it says nothing then, and is replaced."""
    if not isinstance(found, Node):
        return None
    try:
        return Settled.from_json(fields.load(found.data, where), where)
    except MalformedValue as error:
        log.warning("ignoring unreadable path=%s reason=%s", where, error.reason)
        return None


def settled_as_of(where: str, found: ReadResult | Unreadable, ids: ReadResult | Unreadable) -> Settled | None:
    """What is written down, if nobody has registered or left since: ``ids`` is the parent of the registrations."""
    settled = decode_settled(where, found) if isinstance(ids, Node) else None
    as_of = ids.stat.pzxid if isinstance(ids, Node) else 0
    return settled if settled is not None and settled.zxids.hold(as_of) else None


class IdleGroups:
    """Which groups are at rest, as this coordinator has found or read (``memory.at_rest``). The handler's thread;
    :meth:`begin` before.

    Nothing here is trusted for itself: a group counts as at rest for as long as its zxids are what they were when a
    whole look found nothing to do, and the topics too.
    """

    def __init__(self, store: Store, catalog: TopicCatalog, options: CoordinatorOptions) -> None:
        self._store = store
        self._catalog = catalog
        self._options = options
        self._digests: dict[frozenset[str] | None, str] = {}
        self._digests_of: Mapping[str, TopicInfo] | None = None

    def begin(self, memory: GroupMemory, settled: Settled) -> None:
        """It was written down, by whichever coordinator."""
        memory.settled_written = settled
        memory.settled_exists = True
        memory.at_rest = AtRest(settled, None, self._next_whole(memory.group))

    def is_idle(self, memory: GroupMemory) -> bool:
        """Whether it is enough to ask if anything has happened."""
        return memory.at_rest is not None and self._store.clock.monotonic() < memory.at_rest.whole_at

    def still_idle(self, memories: Sequence[GroupMemory]) -> list[bool]:
        """Whether those that were at rest still are. Raises :class:`StoreUnavailable`."""
        topics = self._catalog.topics  # before what is read: who changes them later is an event
        asked = [(memory.group, memory.at_rest) for memory in memories if memory.at_rest is not None]
        found = unchanged(self._store, [(group, resting.settled.zxids) for group, resting in asked])
        for number, (_, resting) in enumerate(asked):
            if found[number] and resting.topics is not topics:
                found[number] = self._digest(resting.settled, topics) == resting.settled.topics
                resting.topics = topics
        return found

    # --- coming to rest ----------------------------------------------------------------------------------------------

    def wants_zxids(self, memory: GroupMemory) -> bool:
        """Whether, if the next look finds nothing to do again, the group is at rest."""
        since = memory.quiet_since
        return since is not None and self._store.clock.monotonic() >= since + self._options.settled_after_ms / 1000

    def looked(self, memory: GroupMemory, snapshot: Snapshot, plan: Plan) -> float | None:
        """After a whole look at a group, and what was decided: when (monotonic) to look again to see whether it is at
        rest."""
        now = self._store.clock.monotonic()
        if not self._options.settled_after_ms:
            return None
        if not plan.quiet(snapshot.observation):
            memory.mark_active()
            return None
        if snapshot.zxids is None:
            memory.at_rest = None
            memory.quiet_since = now if memory.quiet_since is None else memory.quiet_since
            return memory.quiet_since + self._options.settled_after_ms / 1000
        members, topics = snapshot.observation.members, snapshot.observation.topics
        settled = Settled(snapshot.zxids, "", len(members), interests(one.subscription for one in members.values()))
        settled = replace(settled, topics=self._digest(settled, topics))
        memory.at_rest = AtRest(settled, topics, self._next_whole(memory.group))
        return None

    def unwritten(self, memory: GroupMemory, snapshot: Snapshot) -> Create | SetData | None:
        """What is to be written about a group that has been found at rest; ``None`` where that is written already, or
        not to be."""
        resting = memory.at_rest
        if resting is None or snapshot.zxids is None or memory.settled_written == resting.settled:
            return None
        if any(_by_socket(member) for member in snapshot.observation.members.values()):
            return None
        data = fields.dump(resting.settled.to_json())
        if len(data) > MAX_BYTES:
            return None
        path = layout.settled(memory.group)
        return SetData(path, data) if memory.settled_exists else Create(path, data)

    def write(self, executor: Executor, ops: Sequence[tuple[GroupMemory, Create | SetData]]) -> None:
        """Writes down groups found at rest: together, or each by itself where something is in the way. Raises
        :class:`Fenced`, :class:`StoreUnavailable`."""
        try:
            executor.write([[op] for _, op in ops])
        except Fenced:
            raise
        except MultiFailed:
            for memory, op in ops:
                self._write_one(executor, memory, op.data)
        else:
            for memory, _ in ops:
                _took_effect(memory)

    def _write_one(self, executor: Executor, memory: GroupMemory, data: bytes) -> None:
        path = layout.settled(memory.group)
        there = self._store.exists(path) is not None  # somebody deleted it, or it was written and nobody heard of that
        try:
            executor.write([[SetData(path, data) if there else Create(path, data)]])
        except Fenced:
            raise
        except MultiFailed as error:
            log.debug("could not write down that a group is at rest group=%s reason=%s", memory.group, error)
        else:
            _took_effect(memory)

    # --- topics ------------------------------------------------------------------------------------------------------

    def _digest(self, settled: Settled, topics: Mapping[str, TopicInfo]) -> str:
        """Of the topics a target depends on: where there are patterns, of all there are."""
        if self._digests_of is not topics:
            self._digests_of = topics
            self._digests.clear()
        wanted: frozenset[str] | None = frozenset(name for one in settled.subscriptions for name in one.topics)
        if any(one.is_wildcard for one in settled.subscriptions):
            wanted = None
        if wanted not in self._digests:
            self._digests[wanted] = topics_digest(topics, wanted)
        return self._digests[wanted]

    def _next_whole(self, group: str) -> float:
        return self._store.clock.monotonic() + self._options.whole_look_interval_ms / 1000 * spread(group)


def _took_effect(memory: GroupMemory) -> None:
    memory.settled_exists = True
    if memory.at_rest is not None:
        memory.settled_written = memory.at_rest.settled


def topics_digest(topics: Mapping[str, TopicInfo], wanted: frozenset[str] | None) -> str:
    """Of the partitions and identities of ``wanted`` topics, whether they exist or not; ``None``: of all."""
    hashed = hashlib.sha256(b"1\n")
    for name in sorted(topics if wanted is None else wanted):
        topic = topics.get(name)
        told = f"{topic.identity} {ranges(topic.partitions)}" if topic is not None else "absent"
        hashed.update(f"{name} {told}\n".encode())
    return hashed.hexdigest()[:32]


def _by_socket(member: Member) -> bool:
    return member.gateway is not None
