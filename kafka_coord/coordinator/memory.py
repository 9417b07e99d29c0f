"""What a coordinator remembers of each group between two looks: created, invalidated and dropped only here.

Nothing of it matters for safety. It saves reads and decoding, and it records how long things have lasted; a newly
elected coordinator starts without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka_coord.coordinator.registry import GroupRegistry
from kafka_coord.coordinator.steps import GroupState
from kafka_coord.coordinator.timers import GroupTimers
from kafka_coord.model import Decision, Ledger, Settled, SubscriptionKind, TopicInfo, Unreadable
from kafka_coord.model import json_fields as fields
from kafka_coord.zk.store import Node


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the last pass over a group found: its state and the plan's summary."""

    state: GroupState
    summary: str


class Decoded:
    """What the last look at one group decoded: the next look decodes only what was written since.

    The path of a znode and the zxid of its last write identify its value, its version and its incarnation. Values are
    frozen. ``consumers`` are those seen then: the next look reads their znodes before it knows who is still there.
    """

    __slots__ = ("_values", "consumers")

    def __init__(self) -> None:
        self._values: dict[str, tuple[int, object]] = {}
        self.consumers: tuple[str, ...] = ()

    def get(self, path: str, node: Node) -> object | None:
        """The value of this very state of the znode, if the last look decoded it."""
        mzxid, value = self._values.get(path, (-1, None))
        return value if mzxid == node.stat.mzxid else None

    def replace(self, values: dict[str, tuple[int, object]]) -> None:
        """Keeps what this look found and drops everything older."""
        self._values = values


@dataclass(slots=True)
class Progress:
    """A decision that is not settled yet. ``decided`` is monotonic seconds. ``settling``: the write that records it as
    settled was handed out."""

    decision: Decision
    decided: float
    settling: bool = False


class EncodedDecision(NamedTuple):
    """A decision as it is written, so that the next write does not encode it again."""

    generation: int
    data: bytes

    @classmethod
    def of(cls, decision: Decision) -> EncodedDecision:
        return cls(decision.generation, fields.dump(decision.to_json()))


class WrittenHistory(NamedTuple):
    """What the history znode holds, and its version (-1: there is none)."""

    decisions: Sequence[EncodedDecision]
    version: int


@dataclass(slots=True)
class AtRest:
    """A group found at rest. ``topics`` are those ``settled`` was compared with last; all of the group is read again by
    ``whole_at`` (monotonic)."""

    settled: Settled
    topics: Mapping[str, TopicInfo] | None
    whole_at: float


class Matched(NamedTuple):
    """The patterns of a group that were matched with all of these topics."""

    topics: Mapping[str, TopicInfo]
    patterns: frozenset[tuple[SubscriptionKind, str]]


@dataclass(slots=True)
class Unsettled:
    """A group that has not reached its target. Moments are monotonic; ``logged_at`` is when this was last logged.
    ``ownerless`` is how many partitions of its target nobody holds; ``undecided`` whether it has no target that can be
    read, or a pass over it failed."""

    since: float
    reason: str = ""
    ownerless: int = 0
    undecided: bool = False
    logged_at: float | None = None


@dataclass(slots=True)
class GroupMemory:
    """The memory of one group. It belongs to the handler's thread; fields that other threads may read say so."""

    group: str
    outcome: Outcome | None = None
    """Replaced as a whole. Any thread may read it."""
    unreadable: frozenset[Unreadable] = frozenset()
    """What was reported as unreadable at the last look. Any thread may read it."""
    unsettled: Unsettled | None = None
    """Any thread may read it."""
    failures: int = 0
    """Passes that failed since the last one that did not."""

    timers: GroupTimers = field(default_factory=GroupTimers)
    decoded: Decoded = field(default_factory=Decoded)
    armed: set[str] = field(default_factory=set)
    """Command znodes whose deletion is watched."""
    ledgers: Mapping[str, Ledger] = field(default_factory=dict)
    """As the last pass left them (see ``tamper_repair``)."""
    matched: Matched | None = None
    matching_was_logged: bool = False

    progress: Progress | None = None
    history: WrittenHistory | None = None
    """``None``: the znode has to be read before it is written."""

    at_rest: AtRest | None = None
    quiet_since: float | None = None
    settled_written: Settled | None = None
    """What the ``settled`` znode is known to hold."""
    settled_exists: bool = False
    """Whether there is such a znode, whatever it holds."""

    def mark_active(self) -> None:
        """Something has happened to the group: all of it is to be read."""
        self.at_rest = None
        self.quiet_since = None

    def invalidate(self) -> None:
        """What was handed out to be written about the group may or may not have been written."""
        self.mark_active()
        self.history = None
        self.settled_written = None
        if self.progress is not None:
            self.progress.settling = False


class GroupMemories:
    """The memories of all groups. Dropping one also drops its interests from the registry."""

    def __init__(self, registry: GroupRegistry) -> None:
        self._registry = registry
        self._memories: dict[str, GroupMemory] = {}

    def of(self, group: str) -> GroupMemory:
        """The memory of a group, created on first use."""
        found = self._memories.get(group)
        if found is None:
            found = self._memories[group] = GroupMemory(group)
        return found

    def drop(self, group: str) -> None:
        """The group is gone."""
        self._memories.pop(group, None)
        self._registry.drop(group)

    def __iter__(self) -> Iterator[GroupMemory]:
        """As of now; safe on any thread."""
        return iter(list(self._memories.values()))
