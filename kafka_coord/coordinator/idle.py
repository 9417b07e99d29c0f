"""Groups at rest: of which nothing is read but whether they still are (ADR 12)."""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka_coord.coordinator.catalog import TopicCatalog
from kafka_coord.coordinator.execute import Executor
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


@dataclass(slots=True)
class _Resting:
    """``topics`` are those that were compared with ``settled`` last. ``whole_at``: all of it is read again by then
    (monotonic)."""

    settled: Settled
    topics: Mapping[str, TopicInfo] | None
    whole_at: float


class IdleGroups:
    """Which groups are at rest, as this coordinator has found or read. The handler's thread; :meth:`begin` before.

    Nothing here is trusted for itself: a group counts as at rest for as long as its zxids are what they were when a
    whole look found nothing to do, and the topics too.
    """

    def __init__(self, store: Store, catalog: TopicCatalog, options: CoordinatorOptions) -> None:
        self._store = store
        self._catalog = catalog
        self._options = options
        self._resting: dict[str, _Resting] = {}
        self._quiet_since: dict[str, float] = {}
        self._written: dict[str, Settled] = {}
        self._there: set[str] = set()
        self._digests: dict[frozenset[str] | None, str] = {}
        self._digests_of: Mapping[str, TopicInfo] | None = None

    def begin(self, group: str, settled: Settled) -> None:
        """It was written down, by whichever coordinator."""
        self._written[group] = settled
        self._there.add(group)
        self._resting[group] = _Resting(settled, None, self._next_whole(group))

    def exists(self, group: str) -> None:
        """Something is written down, that does not hold."""
        self._there.add(group)

    def forget(self, group: str) -> None:
        """The group is gone."""
        self.mark_active(group)
        self._written.pop(group, None)
        self._there.discard(group)

    def mark_active(self, group: str) -> None:
        """Something has happened to it: all of it is to be read."""
        self._resting.pop(group, None)
        self._quiet_since.pop(group, None)

    def rests(self, group: str) -> bool:
        """Whether it is enough to ask if anything has happened."""
        resting = self._resting.get(group)
        return resting is not None and self._store.clock.monotonic() < resting.whole_at

    def members(self, group: str) -> int:
        """How many it had."""
        return self._resting[group].settled.members

    def glance(self, groups: Sequence[str]) -> list[bool]:
        """Whether those that rest still do. Raises :class:`StoreUnavailable`."""
        topics = self._catalog.topics  # before what is read: who changes them later is an event
        asked = [(group, self._resting[group]) for group in groups]
        found = unchanged(self._store, [(group, resting.settled.zxids) for group, resting in asked])
        for number, (_, resting) in enumerate(asked):
            if found[number] and resting.topics is not topics:
                found[number] = self._digest(resting.settled, topics) == resting.settled.topics
                resting.topics = topics
        return found

    # --- coming to rest ----------------------------------------------------------------------------------------------

    def wants_zxids(self, group: str) -> bool:
        """Whether, if the next look finds nothing to do again, the group is at rest."""
        since = self._quiet_since.get(group)
        return since is not None and self._store.clock.monotonic() >= since + self._options.settled_after_ms / 1000

    def looked(self, look: Snapshot, plan: Plan) -> float | None:
        """After a whole look at a group, and what was decided: when (monotonic) to look again to see whether it is at
        rest."""
        group, now = plan.group, self._store.clock.monotonic()
        if not self._options.settled_after_ms:
            return None
        if not plan.quiet(look.observation):
            self.mark_active(group)
            return None
        if look.zxids is None:
            self._resting.pop(group, None)
            return self._quiet_since.setdefault(group, now) + self._options.settled_after_ms / 1000
        members, topics = look.observation.members, look.observation.topics
        settled = Settled(look.zxids, "", len(members), interests(one.subscription for one in members.values()))
        settled = Settled(settled.zxids, self._digest(settled, topics), settled.members, settled.subscriptions)
        self._resting[group] = _Resting(settled, topics, self._next_whole(group))
        return None

    def due(self, group: str, moment: float) -> None:
        """One of its timers has something to say then: all of it is read at that time."""
        resting = self._resting.get(group)
        if resting is not None:
            resting.whole_at = min(resting.whole_at, moment)

    def unwritten(self, look: Snapshot) -> Create | SetData | None:
        """What is to be written about a group that has been found at rest; ``None`` where that is written already, or
        not to be."""
        group, members = look.observation.group, look.observation.members
        resting = self._resting.get(group)
        if resting is None or look.zxids is None or self._written.get(group) == resting.settled:
            return None
        if any(_by_socket(member) for member in members.values()):
            return None
        data = fields.dump(resting.settled.to_json())
        if len(data) > MAX_BYTES:
            return None
        path = layout.settled(group)
        return SetData(path, data) if group in self._there else Create(path, data)

    def write(self, executor: Executor, ops: Mapping[str, Create | SetData]) -> None:
        """Writes down groups found at rest: together, or each by itself where something is in the way. Raises
        :class:`Fenced`, :class:`StoreUnavailable`."""
        try:
            executor.write([[op] for op in ops.values()])
        except Fenced:
            raise
        except MultiFailed:
            for group, op in ops.items():
                self._write_one(executor, group, op.data)
        else:
            for group in ops:
                self._took_effect(group)

    def invalidate(self, group: str) -> None:
        """What was to be written about it may or may not have been: it is found out when it comes to rest again."""
        self._written.pop(group, None)
        self.mark_active(group)

    def _write_one(self, executor: Executor, group: str, data: bytes) -> None:
        path = layout.settled(group)
        there = self._store.exists(path) is not None  # somebody deleted it, or it was written and nobody heard of that
        try:
            executor.write([[SetData(path, data) if there else Create(path, data)]])
        except Fenced:
            raise
        except MultiFailed as error:
            log.debug("could not write down that a group is at rest group=%s reason=%s", group, error)
        else:
            self._took_effect(group)

    def _took_effect(self, group: str) -> None:
        self._there.add(group)
        resting = self._resting.get(group)
        if resting is not None:
            self._written[group] = resting.settled

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
