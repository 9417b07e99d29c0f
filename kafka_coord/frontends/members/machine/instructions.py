"""What the machine wants done: to be said to a client (:data:`ToClient`), or done on ZooKeeper (:data:`ToStore`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kafka_coord.frontends.members.machine.stimuli import (
    MemberId,
    Offsets,
    RegistrationWanted,
    Request,
    Terms,
)
from kafka_coord.model import Command, CommandId

# --- to be said to a client --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcome:
    """It is registered, and a member on this connection from here on."""

    connection: int
    request: Request
    member: MemberId
    terms: Terms


@dataclass(frozen=True, slots=True)
class RefuseRegistration:
    connection: int
    request: Request
    reason: object


@dataclass(frozen=True, slots=True)
class Resumed:
    """It goes on over this connection. ``outstanding`` are the commands it has not acknowledged."""

    connection: int
    request: Request
    member: MemberId
    outstanding: tuple[CommandId, ...]


@dataclass(frozen=True, slots=True)
class RefuseResume:
    """It is not, or no longer, the member it wants to go on as."""

    connection: int
    request: Request
    message: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Asks it whether it lives. ``heard``: the answers to that probe and all before are stored; ``done``: so is the
    acknowledgement of that command."""

    connection: int
    number: int
    heard: int
    done: CommandId | None


@dataclass(frozen=True, slots=True)
class Deliver:
    """Sends it a command."""

    connection: int
    member: MemberId
    command_id: CommandId
    command: Command


class Refused(StrEnum):
    """Why a commit or leave was refused."""

    NOT_HELD = "not held"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class AnswerCommit:
    """``topics`` exist no more; ``refused``: nothing was written, for the reason in ``message``."""

    connection: int
    request: Request
    topics: frozenset[str] = frozenset()
    refused: Refused | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Farewell:
    """It has left."""

    connection: int
    request: Request
    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Dismiss:
    """The member on this connection is one no longer, or not over this connection."""

    connection: int
    message: str


ToClient = Welcome | RefuseRegistration | Resumed | RefuseResume | Probe | Deliver | AnswerCommit | Farewell | Dismiss

# --- to be done on ZooKeeper -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteRegistration:
    wanted: RegistrationWanted


@dataclass(frozen=True, slots=True)
class WatchRegistration:
    """Says when it is deleted."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class WatchCommands:
    """Lists its commands, now and whenever they change."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop everything known about the member."""

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
class Store:
    """Writes offsets, and with them in one step the acknowledgement of a command, or the end of the registration. At
    most one write of a member is under way: its outcome is :class:`~.stimuli.Stored` with this number."""

    member: MemberId
    number: int
    offsets: Offsets = field(hash=False)
    acknowledges: CommandId | None = None
    leaves: bool = False
    for_good: bool = False


ToStore = (
    WriteRegistration | WatchRegistration | WatchCommands | Forget | ReadMember | ReadCommand | DropCommand | Store
)


class Happening(StrEnum):
    """What people want to know of."""

    REGISTERED = "registered"
    RESUMED = "resumed"
    LEFT = "left"
    EXPIRED = "expired"
    STUCK = "stuck"
    NOT_RESUMED = "not resumed"
    NOT_WRITTEN = "not written"


@dataclass(frozen=True, slots=True)
class Tell:
    """Something for the log and the counters; ``detail`` is the reason where there is one."""

    happening: Happening
    member: MemberId
    connection: int | None = None
    detail: str = ""


Instruction = ToClient | ToStore | Tell
