"""What a coordinator remembers of each group between two looks: made, invalidated and dropped here, nowhere else.

Nothing of it matters for safety. It spares reads and decoding, and it holds how long things have lasted; a coordinator
that is elected begins without it.
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
    """What the last look at one group decoded: the next one decodes only what was written since.

    A znode's path and the zxid of its last write name its value, its version and its incarnation. Values are frozen.
    ``consumers`` are those there were then: the next look asks for their znodes before it knows who is still there.
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
        """Keeps what this look found, and nothing of those before: as much as there is in the group."""
        self._values = values


@dataclass(slots=True)
class Progress:
    """A decision on its way to being settled. ``decided`` is monotonic seconds; ``settling``: it was handed out to be
    written as settled."""

    decision: Decision
    decided: float
    settling: bool = False


class EncodedDecision(NamedTuple):
    """A decision as it is written; what is in a history already is not encoded again for the next one."""

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
    """A group that is not where it should be. Moments are monotonic; ``logged_at`` is when that was logged last.
    ``ownerless`` is how many partitions of its target nobody holds."""

    since: float
    reason: str = ""
    ownerless: int = 0
    logged_at: float | None = None


@dataclass(slots=True)
class GroupMemory:
    """Of one group. The handler's thread; what others may read is said."""

    group: str
    outcome: Outcome | None = None
    """Replaced as a whole, so any thread may read it."""
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
    """All of them, and with each group its interests in the registry."""

    def __init__(self, registry: GroupRegistry) -> None:
        self._registry = registry
        self._memories: dict[str, GroupMemory] = {}

    def of(self, group: str) -> GroupMemory:
        """The memory of a group, made at first."""
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
