"""What happens to members from outside: what came from a client, what was found on ZooKeeper, and that time passed.

A ``connection`` is a number the front end gives each of its connections; a ``request`` is whatever it answers by. A
stimulus about a connection or a member that is no more has no effect.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kafka_coord.model import Command, CommandId, TopicPartition

Offsets = Mapping[TopicPartition, int]
"""Per partition the offset of the next record to read."""
Request = Hashable


class MemberId(NamedTuple):
    """One incarnation of a consumer: ``incarnation`` is the czxid of its registration."""

    group: str
    consumer: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a registration. A client with the same ``resume_key`` may resume it. ``auto_commit``: offsets that
    the member only reports are committed."""

    session_timeout_s: float
    auto_commit: bool = True
    resume_key: str = ""


# --- from a client -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegistrationWanted:
    """``value`` is what goes into the registration's znode: unique to this request, which is recognised by it."""

    connection: int
    request: Request
    group: str
    consumer: str
    terms: Terms
    value: bytes


@dataclass(frozen=True, slots=True)
class ResumeWanted:
    """It wants to go on, over this connection, as the incarnation it was."""

    connection: int
    request: Request
    member: MemberId
    resume_key: str


@dataclass(frozen=True, slots=True)
class Heard:
    """Anything at all came from it: its session timeout begins again."""

    connection: int


@dataclass(frozen=True, slots=True)
class ProbeAnswered:
    """It lives, and reports offsets; ``probe`` is the number it was asked under."""

    connection: int
    probe: int
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class CommandObeyed:
    """The acknowledgement of a command that was delivered over this connection, with the offsets it settles."""

    connection: int
    command: CommandId
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class CommitWanted:
    connection: int
    request: Request
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class LeaveWanted:
    """``for_good``: no place is kept for it."""

    connection: int
    request: Request
    offsets: Offsets
    for_good: bool = False


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is gone; the member on it lives on until its session timeout."""

    connection: int


# --- from ZooKeeper ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberFound:
    """A member that registered with an earlier coordinator was found when the term began."""

    member: MemberId
    terms: Terms


@dataclass(frozen=True, slots=True)
class RegistrationWritten:
    wanted: RegistrationWanted
    member: MemberId


@dataclass(frozen=True, slots=True)
class RegistrationFailed:
    """``reason`` is passed on unchanged; it is a matter between the front end and the shell that wrote it."""

    wanted: RegistrationWanted
    reason: object


@dataclass(frozen=True, slots=True)
class RegistrationDeleted:
    """Nobody is registered under its name any more."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class MemberRead:
    """What ZooKeeper says of one that wants to resume: ``held`` is ``None`` where that says nothing new,
    ``outstanding`` is ``None`` where its channel is gone. ``fault`` says what cannot be read: its ledger, or
    (without ``outstanding``) all of it."""

    member: MemberId
    held: frozenset[TopicPartition] | None
    outstanding: tuple[CommandId, ...] | None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class CommandsListed:
    """The commands in its channel, in the order to obey them."""

    member: MemberId
    commands: tuple[CommandId, ...]


@dataclass(frozen=True, slots=True)
class CommandRead:
    """``command`` is ``None`` where it was taken back; ``fault`` says why it cannot be read."""

    member: MemberId
    command_id: CommandId
    command: Command | None
    fault: str = ""


class Trouble(StrEnum):
    """Why a write was not done."""

    MEMBERSHIP_LOST = "membership lost"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Stored:
    """The outcome of the write numbered so: ``refused`` are topics that exist no more. ``trouble``: nothing was
    written, for this ``reason``."""

    member: MemberId
    number: int
    refused: frozenset[str] = frozenset()
    trouble: Trouble | None = None
    reason: str = ""


# --- time --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepBegan:
    """The gateway looks after its members again. ``leads``: it is certain that its instance is the elected one."""

    leads: bool


@dataclass(frozen=True, slots=True)
class TimersDue:
    """All earlier input has been handled: a member not heard from by now is late."""


Stimulus = (
    RegistrationWanted
    | ResumeWanted
    | Heard
    | ProbeAnswered
    | CommandObeyed
    | CommitWanted
    | LeaveWanted
    | Disconnected
    | MemberFound
    | RegistrationWritten
    | RegistrationFailed
    | RegistrationDeleted
    | MemberRead
    | CommandsListed
    | CommandRead
    | Stored
    | StepBegan
    | TimersDue
)
