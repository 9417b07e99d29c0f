"""One member as the machine knows it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from kafka_coord.frontends.members.machine.stimuli import MemberId, Request, Terms
from kafka_coord.model import Command, CommandId, StopFetcher, TopicPartition

PROBES_PER_SESSION = 3
"""Probes go out at a third of the session timeout."""


@dataclass(slots=True, eq=False)
class Delivered:
    """A command the client was sent. ``obeyed``: its acknowledgement is on its way to ZooKeeper, and nothing comes
    after it before that is there."""

    command_id: CommandId
    command: Command
    obeyed: bool = False


@dataclass(slots=True, eq=False)
class OffersWrite:
    """The offsets the member has reported by the time this is written; then ``probe`` is heard on ``connection``."""

    connection: int | None = None
    probe: int = 0
    offsets: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class CommitWrite:
    """Offsets the client waits for."""

    connection: int
    request: Request
    offsets: dict[TopicPartition, int]


@dataclass(slots=True, eq=False)
class AcknowledgeWrite:
    """The acknowledgement of a delivered command, with the offsets it settles."""

    connection: int
    delivered: Delivered
    offsets: dict[TopicPartition, int]

    @property
    def gives_up(self) -> frozenset[TopicPartition]:
        """What belongs to somebody else once it is written."""
        command = self.delivered.command
        return frozenset(command.partitions) if isinstance(command, StopFetcher) else frozenset()


@dataclass(slots=True, eq=False)
class LeaveWrite:
    """The end of the registration, asked for by the client, or (without ``connection``) because it was not heard of."""

    connection: int | None
    request: Request
    offsets: dict[TopicPartition, int]
    for_good: bool = False


PendingWrite = OffersWrite | CommitWrite | AcknowledgeWrite | LeaveWrite


@dataclass(slots=True, eq=False)
class MemberState:
    """All times are in the machine's own seconds.

    ``deadline`` is when it is expired unless something comes from it. ``stuck`` is why it is sent no command, or cannot
    resume. ``held`` are the partitions it acknowledged to
    fetch, the only ones it may commit; ``held_known``: whether that is known, which it is not of one that an earlier
    coordinator registered, until it resumes. ``reported`` are offsets it reported that no write was made of yet;
    ``newest_answer`` is the newest probe it answered. ``probes`` are unanswered; those in ``confirming`` went out
    only to say that the one before was heard. ``writes`` wait behind ``writing``, whose outcome is not known.
    """

    id: MemberId
    terms: Terms
    deadline: float
    connection: int | None = None
    probe_due: float = 0.0
    last_probe: int = 0
    probes: set[int] = field(default_factory=set)
    confirming: set[int] = field(default_factory=set)
    heard: int = 0
    done: CommandId | None = None
    queue: deque[CommandId] = field(default_factory=deque)
    reading: CommandId | None = None
    delivered: Delivered | None = None
    stuck: str = ""
    held: set[TopicPartition] = field(default_factory=set)
    held_known: bool = True
    reread_due: float = 0.0
    reported: dict[TopicPartition, int] = field(default_factory=dict)
    newest_answer: int = 0
    writes: deque[PendingWrite] = field(default_factory=deque)
    writing: PendingWrite | None = None
    write_number: int = 0
    expiring: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """(group, consumer)."""
        return self.id.group, self.id.consumer

    @property
    def probe_interval_s(self) -> float:
        return self.terms.session_timeout_s / PROBES_PER_SESSION

    @property
    def answered(self) -> int:
        """The newest probe that is answered together with all before it."""
        return min([self.newest_answer, *(probe - 1 for probe in self.probes if probe < self.newest_answer)])

    @property
    def has_unwritten(self) -> bool:
        return self.writing is not None or bool(self.writes)
