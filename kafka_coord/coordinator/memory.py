"""What the coordinator remembers about each group between passes, and how this memory is created, invalidated and
dropped.

Safety does not depend on this memory. It saves reads and decoding, and it records how long conditions have lasted. A
newly elected coordinator starts with an empty memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka_coord.coordinator.deadlines import GroupTimers
from kafka_coord.coordinator.image import Known
from kafka_coord.coordinator.registry import GroupRegistry
from kafka_coord.coordinator.steps import GroupState
from kafka_coord.model import Coverage, Decision, Ledger, Settled, SubscriptionKind, TopicInfo, Unreadable
from kafka_coord.model import json_fields as fields


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
        return cls(decision.generation, fields.dump(decision.to_json()))


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
