"""The machine's stimuli: requests and heartbeats from clients, results and events from ZooKeeper, and the passage of
time.

``connection`` and ``request`` are the front end's own identifiers. A response repeats ``request``. A stimulus about
a connection or a member that no longer exists has no effect.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, NamedTuple

from kafka_coord.model import Command, CommandId, Departure, OffsetDetails, Subscription, TopicPartition
from kafka_coord.model.member import LEFT, Unresolved

Offsets = Mapping[TopicPartition, int]
"""Maps each partition to the offset of the next record to read."""
Request = Hashable


class MemberId(NamedTuple):
    """One incarnation of a consumer. ``incarnation`` is the czxid of its registration."""

    group: str
    consumer: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class RegistrationOptions:
    """The options of a registration. A client with the same ``resume_key`` may resume the membership. If
    ``auto_commit`` is set, the machine commits reported offsets. ``protocol`` is :attr:`Member.protocol`."""

    session_timeout_s: float
    auto_commit: bool = True
    resume_key: str = ""
    protocol: str | None = None


# --- from a client -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegistrationWanted:
    """A client asks to register. ``value`` is the content of the registration's znode, which is unique and thus
    identifies the request."""

    connection: int
    request: Request
    group: str
    consumer: str
    options: RegistrationOptions
    value: bytes


@dataclass(frozen=True, slots=True)
class ResumeWanted:
    """A client asks to continue its earlier membership, as the same incarnation, on ``connection``."""

    connection: int
    request: Request
    member: MemberId
    resume_key: str


@dataclass(frozen=True, slots=True)
class HeardFrom:
    """A client sent a message, which restarts its session timeout."""

    connection: int


@dataclass(frozen=True, slots=True)
class ProbeAnswered:
    """A client answered the probe with the given number and reported offsets."""

    connection: int
    probe: int
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class CommandAcknowledged:
    """A client acknowledged a command that was delivered over ``connection``, and sent the final offsets of the
    command's partitions."""

    connection: int
    command: CommandId
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class CommitWanted:
    """A client asks to commit ``offsets``. ``details`` contains those that carry a leader epoch or metadata."""

    connection: int
    request: Request
    offsets: Offsets
    details: OffsetDetails = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class SubscriptionWanted:
    """A client asks to change its subscription without becoming a new incarnation. The request is answered like a
    commit."""

    connection: int
    request: Request
    subscription: Subscription
    offsets: ClassVar[Offsets] = {}


@dataclass(frozen=True, slots=True)
class UnresolvedWanted:
    """A client reports what it cannot resolve, and the ends that it has listed. The request is answered like a
    commit."""

    connection: int
    request: Request
    unresolved: Unresolved = field(hash=False)
    offsets: ClassVar[Offsets] = {}


@dataclass(frozen=True, slots=True)
class LeaveWanted:
    """A client asks to leave. If ``for_good`` is set, the coordinator does not keep its place. The machine also uses
    this stimulus to expire a silent member, with ``None`` as the ``connection``. ``departure`` is how the member goes,
    for the group's history."""

    connection: int | None
    request: Request
    offsets: Offsets
    for_good: bool = False
    departure: Departure = LEFT


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A connection has ended. Its member remains until the session timeout expires."""

    connection: int


# --- from ZooKeeper ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberFound:
    """A member that registered with an earlier coordinator was found. This term waits for it for ``session_left_s``
    seconds, or for a full session timeout if that is ``None``."""

    member: MemberId
    options: RegistrationOptions
    session_left_s: float | None = None


@dataclass(frozen=True, slots=True)
class RegistrationWritten:
    wanted: RegistrationWanted
    member: MemberId


@dataclass(frozen=True, slots=True)
class RegistrationFailed:
    """The registration failed. The machine passes ``reason`` on to the front end unchanged."""

    wanted: RegistrationWanted
    reason: object


@dataclass(frozen=True, slots=True)
class RegistrationDeleted:
    """The member's registration was deleted."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class MemberRead:
    """The ledger and the channel of a member that wants to resume have been read.

    ``held`` contains the partitions that the member may commit, or is ``None`` if there is no readable ledger.
    ``outstanding`` contains the member's unacknowledged commands, or is ``None`` if the channel is gone or could not be
    read. ``fault`` says why the ledger or the channel could not be read; it is empty if the channel is gone.
    ``generation`` is the generation of the member's newest command: 0 if there has been none, ``None`` if the ledger
    could not be read.
    """

    member: MemberId
    held: frozenset[TopicPartition] | None
    outstanding: tuple[CommandId, ...] | None
    fault: str = ""
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class CommandsListed:
    """The commands in a member's channel, in order of execution."""

    member: MemberId
    commands: tuple[CommandId, ...]


@dataclass(frozen=True, slots=True)
class CommandRead:
    """A command was read. ``command`` is ``None`` if the command no longer exists or cannot be read. If it cannot
    be read, ``fault`` says why."""

    member: MemberId
    command_id: CommandId
    command: Command | None
    fault: str = ""


class Trouble(StrEnum):
    """The reasons why a write failed."""

    MEMBERSHIP_LOST = "membership lost"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class MemberWritten:
    """The outcome of the write with the given number. ``refused`` contains the topics that no longer exist. If
    ``trouble`` is set, nothing was written, and ``reason`` says why. ``kept`` contains the group's offsets of the
    partitions whose ends the member has listed."""

    member: MemberId
    number: int
    refused: frozenset[str] = frozenset()
    trouble: Trouble | None = None
    reason: str = ""
    kept: Offsets = field(default_factory=dict, hash=False)


# --- time --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepBegan:
    """The gateway has begun a step. ``leads`` is true if this instance is certain to be the coordinator."""

    leads: bool


@dataclass(frozen=True, slots=True)
class TimersDue:
    """All earlier input has been handled, so any member whose deadline has passed must expire."""


Stimulus = (
    RegistrationWanted
    | ResumeWanted
    | HeardFrom
    | ProbeAnswered
    | CommandAcknowledged
    | CommitWanted
    | SubscriptionWanted
    | UnresolvedWanted
    | LeaveWanted
    | Disconnected
    | MemberFound
    | RegistrationWritten
    | RegistrationFailed
    | RegistrationDeleted
    | MemberRead
    | CommandsListed
    | CommandRead
    | MemberWritten
    | StepBegan
    | TimersDue
)
