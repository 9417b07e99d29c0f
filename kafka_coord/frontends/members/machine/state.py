"""What the machine knows about one member."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from kafka_coord.frontends.members.machine.stimuli import (
    CommitWanted,
    LeaveWanted,
    MemberId,
    RegistrationOptions,
    SubscriptionWanted,
    UnresolvedWanted,
)
from kafka_coord.model import Command, CommandId, CommittedOffset, StopFetcher, TopicPartition

PROBES_PER_SESSION = 3
"""The machine probes a member every third of its session timeout."""


@dataclass(slots=True, eq=False)
class Delivered:
    """A command that has been sent to the client. ``acknowledged`` is set as soon as the client acknowledges it, but
    the next command is not sent until the acknowledgement has been written."""

    command_id: CommandId
    command: Command
    acknowledged: bool = False


@dataclass(slots=True, eq=False)
class OffersWrite:
    """A write of the offsets that the member has reported since the last write of this kind. Once the write
    is done, ``probe`` is confirmed on ``connection``, unless ``probe`` is 0."""

    connection: int | None = None
    probe: int = 0
    offsets: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class AcknowledgeWrite:
    """The acknowledgement of a delivered command, with the final offsets of its partitions."""

    connection: int
    delivered: Delivered
    offsets: dict[TopicPartition, int]

    @property
    def gives_up(self) -> frozenset[TopicPartition]:
        """The partitions that may belong to another member once the acknowledgement is written."""
        command = self.delivered.command
        return frozenset(command.partitions) if isinstance(command, StopFetcher) else frozenset()


PendingWrite = OffersWrite | AcknowledgeWrite | CommitWanted | SubscriptionWanted | UnresolvedWanted | LeaveWanted


@dataclass(slots=True, eq=False)
class MemberState:
    """The state of one member. All times are in seconds of the machine's own clock."""

    id: MemberId
    options: RegistrationOptions
    deadline: float
    """When the member expires if it stays silent."""
    connection: int | None = None
    probe_due: float = 0.0
    last_probe: int = 0
    probes: set[int] = field(default_factory=set)
    """The unanswered probes."""
    confirming: set[int] = field(default_factory=set)
    """The unanswered probes that only confirm the previous response."""
    heard: int = 0
    done: CommandId | None = None
    queue: deque[CommandId] = field(default_factory=deque)
    reading: CommandId | None = None
    delivered: Delivered | None = None
    stuck: str = ""
    """Why the member does not get its next command, or cannot resume."""
    held: set[TopicPartition] = field(default_factory=set)
    """The partitions whose start the member has acknowledged, which are the only ones that it may commit."""
    held_known: bool = True
    """False for a member that registered with an earlier coordinator, until it resumes."""
    reread_due: float = 0.0
    reported: dict[TopicPartition, int] = field(default_factory=dict)
    """The reported offsets that are not part of a write yet."""
    leader_epochs: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    """Committed offsets whose details are written when the member gives up the partition."""
    newest_answer: int = 0
    """The newest answered probe."""
    writes: deque[PendingWrite] = field(default_factory=deque)
    """The writes queued behind ``writing``."""
    writing: PendingWrite | None = None
    write_number: int = 0
    expiring: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """(group, consumer)."""
        return self.id.group, self.id.consumer

    @property
    def probe_interval_s(self) -> float:
        return self.options.session_timeout_s / PROBES_PER_SESSION

    @property
    def answered_up_to(self) -> int:
        """The newest probe that has been answered along with all earlier ones."""
        return min([self.newest_answer, *(probe - 1 for probe in self.probes if probe < self.newest_answer)])

    @property
    def has_unwritten(self) -> bool:
        return self.writing is not None or bool(self.writes)


class Timers:
    """A queue of timers, each with a member and a due time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, MemberState]] = []
        self._order = itertools.count()

    def add(self, at: float, member: MemberState) -> None:
        heapq.heappush(self._heap, (at, next(self._order), member))

    def next_at(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")

    def due(self, now: float) -> Iterator[tuple[float, MemberState]]:
        """Removes the timers that are due, and yields each one's due time and member."""
        while self._heap and self._heap[0][0] <= now:
            at, _, member = heapq.heappop(self._heap)
            yield at, member
