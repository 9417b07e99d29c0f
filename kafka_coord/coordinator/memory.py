"""What the coordinator remembers: Kafka's topics and the groups that subscribe to them, as the listeners last saw them,
and what it keeps about each group between passes.

Safety does not depend on this memory. It saves reads and decoding, and it records how long conditions have lasted. A
newly elected coordinator starts with an empty memory.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from kafka_coord.coordinator.deadlines import GroupTimers
from kafka_coord.coordinator.image import Known
from kafka_coord.coordinator.steps import GroupState
from kafka_coord.model import (
    Coverage,
    Decision,
    Ledger,
    Member,
    Settled,
    Subscription,
    SubscriptionKind,
    TopicInfo,
    Unreadable,
)


class GroupRegistry:
    """The subscriptions of all groups, kept in the original design's ``consumer_groups_per_topic`` and
    ``groups_with_wildcard_topics``. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.consumer_groups_per_topic: dict[str, set[str]] = {}
        self._static_topics: dict[str, frozenset[str]] = {}
        self._patterns: dict[str, tuple[Subscription, ...]] = {}

    @property
    def groups_with_wildcard_topics(self) -> set[str]:
        with self._lock:
            return set(self._patterns)

    def topics_by_name(self) -> list[str]:
        """Returns the topics that groups subscribe to by name."""
        with self._lock:
            return list(self.consumer_groups_per_topic)

    def update(self, group: str, members: Iterable[Member]) -> bool:
        """Replaces the group's subscriptions with those of its members. Returns whether they changed."""
        return self.put(group, {id(m.subscription): m.subscription for m in members}.values())

    def put(self, group: str, subscriptions: Collection[Subscription]) -> bool:
        """Like :meth:`update`, but takes subscriptions instead of members."""
        topics = frozenset(t for s in subscriptions if not s.is_wildcard for t in s.topics)
        wildcards = {(s.kind, s.pattern): s for s in subscriptions if s.is_wildcard}
        with self._lock:
            before = self._static_topics.get(group, frozenset())
            interests = topics, tuple(wildcards.values())
            changed = interests != (before, self._patterns.get(group, ()))
            for topic in before - topics:
                self._forget_interest(topic, group)
            for topic in topics - before:
                self.consumer_groups_per_topic.setdefault(topic, set()).add(group)
            self._static_topics[group] = topics
            self._patterns.pop(group, None)
            if wildcards:
                self._patterns[group] = interests[1]
        return changed

    def drop(self, group: str) -> None:
        """Forgets a removed group."""
        with self._lock:
            for topic in self._static_topics.pop(group, ()):
                self._forget_interest(topic, group)
            self._patterns.pop(group, None)

    def groups_for_topic(self, topic: str) -> frozenset[str]:
        """Returns the groups that subscribe to ``topic``, by name or by pattern. Includes groups whose pattern has not
        been matched against the topic yet: a slow pattern must not block a listener, so the match is left to the
        group's next pass."""
        with self._lock:
            by_name = frozenset(self.consumer_groups_per_topic.get(topic, ()))
            patterns = [(g, wanted) for g, wanted in self._patterns.items() if g not in by_name]
        return by_name | {g for g, wanted in patterns if any(not s.knows(topic) or s.wants(topic) for s in wanted)}

    def clear(self) -> None:
        with self._lock:
            self.consumer_groups_per_topic.clear()
            self._static_topics.clear()
            self._patterns.clear()

    def _forget_interest(self, topic: str, group: str) -> None:
        groups = self.consumer_groups_per_topic.get(topic)
        if groups is not None:
            groups.discard(group)
            if not groups:
                del self.consumer_groups_per_topic[topic]


class TopicCatalog:
    """All Kafka topics. The listeners' thread writes them; the handler reads immutable snapshots."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: dict[str, TopicInfo] = {}
        self._snapshot: Mapping[str, TopicInfo] | None = MappingProxyType({})

    @property
    def topics(self) -> Mapping[str, TopicInfo]:
        with self._lock:
            if self._snapshot is None:
                self._snapshot = MappingProxyType(dict(self._topics))
            return self._snapshot

    def put(self, topic: TopicInfo) -> TopicInfo | None:
        """Stores a topic's current state and returns the previous one."""
        with self._lock:
            before = self._topics.get(topic.name)
            if before != topic:
                self._topics[topic.name] = topic
                self._snapshot = None
            return before

    def drop(self, name: str) -> bool:
        """Forgets a topic. Returns whether it was known."""
        with self._lock:
            known = self._topics.pop(name, None) is not None
            if known:
                self._snapshot = None
            return known

    def names(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._topics)

    def clear(self) -> None:
        with self._lock:
            self._topics.clear()
            self._snapshot = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of the last pass over a group: its state and the plan's summary."""

    state: GroupState
    summary: str


@dataclass(slots=True)
class Progress:
    """A decision that is not settled yet. ``decided`` is when it was made, in monotonic seconds. ``settling`` is
    true once the write that records it as settled has been prepared."""

    decision: Decision
    decided: float
    settling: bool = False


class EncodedDecision(NamedTuple):
    """An encoded decision, so that the next write does not have to encode it again."""

    generation: int
    data: bytes

    @classmethod
    def of(cls, decision: Decision) -> EncodedDecision:
        return cls(decision.generation, decision.to_bytes())


class WrittenHistory(NamedTuple):
    """The contents of the history znode, with encoded ``actions``, and its version (-1 if the znode does not exist)."""

    decisions: Sequence[EncodedDecision]
    actions: Sequence[bytes]
    version: int


@dataclass(slots=True)
class AtRest:
    """A group found at rest. ``topics`` contains the topics last compared with ``settled``. From the (monotonic)
    time ``whole_at`` on, the next pass reads the whole group again."""

    settled: Settled
    topics: Mapping[str, TopicInfo] | None
    whole_at: float


class Matched(NamedTuple):
    """The patterns of a group that have already been matched against every topic in ``topics``."""

    topics: Mapping[str, TopicInfo]
    patterns: frozenset[tuple[SubscriptionKind, str]]


@dataclass(slots=True)
class Unsettled:
    """A group that has not reached its target. Times are monotonic. ``logged_at`` is the time of the last warning about
    it. ``ownerless`` is the number of partitions in its target that no one holds. ``undecided`` means that the group
    has no readable target, or that a pass over it failed."""

    since: float
    reason: str = ""
    ownerless: int = 0
    undecided: bool = False
    logged_at: float | None = None


@dataclass(slots=True)
class GroupMemory:
    """What the coordinator remembers about one group. It belongs to the handler's thread, except for the fields that
    are marked as readable from any thread."""

    group: str
    outcome: Outcome | None = None
    """Any thread may read this field, because its value is only ever replaced as a whole."""
    unreadable: frozenset[Unreadable] = frozenset()
    """The znodes that the last pass reported as unreadable. Any thread may read this field."""
    unread: frozenset[str] = frozenset()
    """The topics that no member may read, as last told."""
    unsettled: Unsettled | None = None
    """Any thread may read this field."""
    failures: int = 0
    """The number of passes that have failed in a row."""
    requested: float | None = None
    """The (monotonic) time of the event that caused the current pass, or ``None`` if no event caused it."""
    taken: float = 0.0
    """The (monotonic) time at which the current pass began."""

    timers: GroupTimers = field(default_factory=GroupTimers)
    known: Known = field(default_factory=Known)
    """What the last pass read, for the next one."""
    watched_commands: set[str] = field(default_factory=set)
    """The command znodes whose deletion is watched."""
    ledgers: Mapping[str, Ledger] = field(default_factory=dict)
    """The ledgers after the last pass (see ``decision_writer``)."""
    covered: Coverage = field(default_factory=Coverage)
    """The subscriptions that the group is known to remember (ADR 41)."""
    offsets_examined: float | None = None
    """When the group's offsets were last examined, in monotonic seconds (``coordinator.offset_expiry``)."""
    left_out: frozenset[str] = frozenset()
    """The internal topics with offsets that the members' patterns leave out, which was logged."""
    nothing_kept: bool = False
    """Whether the next pass is to remove the group, because it is empty and has no offsets."""
    matched: Matched | None = None
    matching_was_logged: bool = False

    progress: Progress | None = None
    history: WrittenHistory | None = None
    """If this is ``None``, the znode must be read before it is written."""

    at_rest: AtRest | None = None
    quiet_since: float | None = None
    settled_written: Settled | None = None
    """The last known value of the ``settled`` znode."""
    settled_exists: bool = False
    """Whether the ``settled`` znode exists, whatever its value."""

    def mark_active(self) -> None:
        """Records that something happened to the group, so the next pass reads the whole group."""
        self.at_rest = None
        self.quiet_since = None

    def invalidate(self) -> None:
        """Forgets values that may or may not have been written."""
        self.mark_active()
        self.history = None
        self.settled_written = None
        if self.progress is not None:
            self.progress.settling = False


class GroupMemories:
    """The memories of all groups. Dropping a memory also removes the group's subscriptions from the registry."""

    def __init__(self, registry: GroupRegistry) -> None:
        self._registry = registry
        self._memories: dict[str, GroupMemory] = {}

    def of(self, group: str) -> GroupMemory:
        """Returns the memory of a group. Creates it on first use."""
        memory = self._memories.get(group)
        if memory is None:
            memory = self._memories[group] = GroupMemory(group)
        return memory

    def drop(self, group: str) -> None:
        """Forgets a removed group."""
        self._memories.pop(group, None)
        self._registry.drop(group)

    def __iter__(self) -> Iterator[GroupMemory]:
        """Iterates over the current memories. Safe to call from any thread."""
        return iter(list(self._memories.values()))
