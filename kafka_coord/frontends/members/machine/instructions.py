"""The machine's instructions: messages to a client (:data:`ToClient`) and work in ZooKeeper (:data:`ToStore`)."""

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
from kafka_coord.model import Command, CommandId, Departure, OffsetDetails, Subscription
from kafka_coord.model.member import LEFT, Unresolved

# --- messages to clients ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcome:
    """Tell the client that it has been registered and is now a member on ``connection``."""

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
    """Tell the client that its membership continues on ``connection``. ``outstanding`` lists the commands that it has
    not acknowledged. ``generation`` is the latest generation that the client can know, or ``None`` if that is
    unknown."""

    connection: int
    request: Request
    member: MemberId
    outstanding: tuple[CommandId, ...]
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class RefuseResume:
    """Tell the client that it cannot resume: the member does not exist."""

    connection: int
    request: Request
    message: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask whether the member is alive, and confirm what has been stored: everything reported in responses to probes up
    to ``heard``, and the acknowledgement of the command ``done``."""

    connection: int
    number: int
    heard: int
    done: CommandId | None


@dataclass(frozen=True, slots=True)
class Deliver:
    """Send the member a command."""

    connection: int
    member: MemberId
    command_id: CommandId
    command: Command


class Refused(StrEnum):
    """The reasons for refusing a commit, a new subscription or a request to leave."""

    NOT_HELD = "not held"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class AnswerCommit:
    """Answer a commit, a new subscription or a report of what is unresolved, or report that leaving has failed.
    ``topics`` contains the topics that no longer exist. If ``refused`` is set, nothing was written, and ``message`` is
    the reason. ``kept`` is the answer to listed ends (see :class:`~.stimuli.MemberWritten`)."""

    connection: int
    request: Request
    topics: frozenset[str] = frozenset()
    refused: Refused | None = None
    message: str = ""
    kept: Offsets | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class Farewell:
    """Tell the client that it has left. ``topics`` contains the topics in its last offsets that no longer exist."""

    connection: int
    request: Request
    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Tell the client that it is no longer a member, or that its membership continues on another connection."""

    connection: int
    message: str


ToClient = Welcome | RefuseRegistration | Resumed | RefuseResume | Probe | Deliver | AnswerCommit | Farewell | Dismiss

# --- work in ZooKeeper -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteRegistration:
    wanted: RegistrationWanted


@dataclass(frozen=True, slots=True)
class WatchRegistration:
    """Watch the registration and report its deletion."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class WatchCommands:
    """List the member's commands now and after every change."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop everything that is known about the member."""

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
    """Delete a command that was addressed to an earlier incarnation."""

    member: MemberId
    command_id: CommandId


@dataclass(frozen=True, slots=True)
class WriteMember:
    """Write offsets and, in the same multi, acknowledge a command or delete the registration. If ``subscription`` is
    set, only update the registration with it. If ``unresolved`` is set, only write what it reports. ``departure`` says
    how a leaving member goes. Report the outcome in a :class:`~.stimuli.MemberWritten` with the same ``number``. A
    member has at most one outstanding write. ``details`` belong to ``offsets`` or, if the member gives up partitions,
    to offsets that are already stored."""

    member: MemberId
    number: int
    offsets: Offsets = field(hash=False)
    acknowledges: CommandId | None = None
    leaves: bool = False
    for_good: bool = False
    subscription: Subscription | None = None
    details: OffsetDetails = field(default_factory=dict, hash=False)
    departure: Departure = LEFT
    unresolved: Unresolved | None = field(default=None, hash=False)


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
    """The events that are reported to operators."""

    REGISTERED = "registered"
    RESUMED = "resumed"
    LEFT = "left"
    EXPIRED = "expired"
    REPLACED = "replaced"
    EVICTED = "evicted"
    STUCK = "stuck"
    NOT_RESUMED = "not resumed"
    NOT_WRITTEN = "not written"


@dataclass(frozen=True, slots=True)
class ReportEvent:
    """Report an event to the log and the counters. ``detail`` is the reason, if there is one."""

    event: MemberEvent
    member: MemberId
    connection: int | None = None
    detail: str = ""


Instruction = ToClient | ToStore | ReportEvent
