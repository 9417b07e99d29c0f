"""The machine's instructions: messages to a client (:data:`ToClient`), and work on ZooKeeper (:data:`ToStore`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kafka_coord.frontends.members.machine.stimuli import (
    MemberId,
    Offsets,
    RegistrationOptions,
    RegistrationWanted,
    Request,
)
from kafka_coord.model import Command, CommandId, OffsetDetails, Subscription

# --- messages to clients ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcome:
    """Tells the client that it is registered and is now a member on this connection."""

    connection: int
    request: Request
    member: MemberId
    options: RegistrationOptions


@dataclass(frozen=True, slots=True)
class RefuseRegistration:
    connection: int
    request: Request
    reason: object


@dataclass(frozen=True, slots=True)
class Resumed:
    """Tells the client that its membership continues on this connection. ``outstanding`` holds the commands that it has
    not acknowledged. ``generation`` is the latest generation that the client can know, or ``None`` if that is
    unknown."""

    connection: int
    request: Request
    member: MemberId
    outstanding: tuple[CommandId, ...]
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class RefuseResume:
    """Tells the client that it cannot resume, because the member does not exist."""

    connection: int
    request: Request
    message: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Asks whether the member is alive. Confirms that the responses to all probes up to ``heard`` and the
    acknowledgement of the command ``done`` are stored."""

    connection: int
    number: int
    heard: int
    done: CommandId | None


@dataclass(frozen=True, slots=True)
class Deliver:
    """Sends the member a command."""

    connection: int
    member: MemberId
    command_id: CommandId
    command: Command


class Refused(StrEnum):
    """The reasons for refusing a commit, a new subscription or a leave."""

    NOT_HELD = "not held"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class AnswerCommit:
    """Answers a commit or a new subscription, or reports that a leave has failed. ``topics`` holds the topics that no
    longer exist. If ``refused`` is set, nothing was written, and ``message`` is the reason."""

    connection: int
    request: Request
    topics: frozenset[str] = frozenset()
    refused: Refused | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Farewell:
    """Tells the client that it has left."""

    connection: int
    request: Request
    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Tells the client that it is no longer a member, or that its membership continues on another connection."""

    connection: int
    message: str


ToClient = Welcome | RefuseRegistration | Resumed | RefuseResume | Probe | Deliver | AnswerCommit | Farewell | Dismiss

# --- work on ZooKeeper -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteRegistration:
    wanted: RegistrationWanted


@dataclass(frozen=True, slots=True)
class WatchRegistration:
    """Watches the registration and reports when it is deleted."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class WatchCommands:
    """Lists the member's commands now, and again after every change."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class Forget:
    """Drops everything that is known about the member."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class ReadMember:
    member: MemberId


@dataclass(frozen=True, slots=True)
class ReadCommand:
    member: MemberId
    command_id: CommandId


@dataclass(frozen=True, slots=True)
class DropCommand:
    """Removes a command that was for an earlier incarnation."""

    member: MemberId
    command_id: CommandId


@dataclass(frozen=True, slots=True)
class WriteMember:
    """Writes offsets and, in the same multi, the acknowledgement of a command or the end of the registration. If
    ``subscription`` is set, writes a new subscription into the registration instead. At most one write of a member is
    outstanding. :class:`~.stimuli.MemberWritten` with this number reports the outcome. ``details`` belong to these
    offsets or, if the member gives up partitions, to stored offsets."""

    member: MemberId
    number: int
    offsets: Offsets = field(hash=False)
    acknowledges: CommandId | None = None
    leaves: bool = False
    for_good: bool = False
    subscription: Subscription | None = None
    details: OffsetDetails = field(default_factory=dict, hash=False)


ToStore = (
    WriteRegistration
    | WatchRegistration
    | WatchCommands
    | Forget
    | ReadMember
    | ReadCommand
    | DropCommand
    | WriteMember
)


class MemberEvent(StrEnum):
    """The events that operators want to see."""

    REGISTERED = "registered"
    RESUMED = "resumed"
    LEFT = "left"
    EXPIRED = "expired"
    STUCK = "stuck"
    NOT_RESUMED = "not resumed"
    NOT_WRITTEN = "not written"


@dataclass(frozen=True, slots=True)
class ReportEvent:
    """Reports an event to the log and the counters. ``detail`` is the reason, or empty."""

    event: MemberEvent
    member: MemberId
    connection: int | None = None
    detail: str = ""


Instruction = ToClient | ToStore | ReportEvent
