"""The stimuli of the machine: registrations, heartbeats, acknowledgements and commits of clients, news from ZooKeeper,
and the passing of time.

A ``connection`` is the number that the front end gives each of its connections. A ``request`` is the value by which the
front end matches the answer. A stimulus about a connection or a member that no longer exists has no effect.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kafka_coord.model import Command, CommandId, Subscription, TopicPartition

Offsets = Mapping[TopicPartition, int]
"""Maps each partition to the offset of the next record to read."""
Request = Hashable


class MemberId(NamedTuple):
    """One incarnation of a consumer: ``incarnation`` is the czxid of its registration."""

    group: str
    consumer: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class RegistrationOptions:
    """The options of a registration. A client with the same ``resume_key`` may resume it. With ``auto_commit``, offsets
    that the member only reports are committed."""

    session_timeout_s: float
    auto_commit: bool = True
    resume_key: str = ""


# --- from a client -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegistrationWanted:
    """A client asks to register. ``value`` is the content of the registration's znode. It is unique, so it identifies
    this request."""

    connection: int
    request: Request
    group: str
    consumer: str
    options: RegistrationOptions
    value: bytes


@dataclass(frozen=True, slots=True)
class ResumeWanted:
    """A client asks to continue, over this connection, as its earlier incarnation."""

    connection: int
    request: Request
    member: MemberId
    resume_key: str


@dataclass(frozen=True, slots=True)
class Heard:
    """A client sent anything at all: its session timeout starts again."""

    connection: int


@dataclass(frozen=True, slots=True)
class ProbeAnswered:
    """A client answers a probe and reports offsets; ``probe`` is the probe's number."""

    connection: int
    probe: int
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class CommandAcknowledged:
    """A client acknowledges a command that was delivered over this connection, with the final offsets of its
    partitions."""

    connection: int
    command: CommandId
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class CommitWanted:
    connection: int
    request: Request
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class SubscriptionWanted:
    """A client subscribes to something else, and goes on as the same incarnation. It is answered like a commit."""

    connection: int
    request: Request
    subscription: Subscription


@dataclass(frozen=True, slots=True)
class LeaveWanted:
    """A client asks to leave. With ``for_good``, the coordinator keeps no place for it."""

    connection: int
    request: Request
    offsets: Offsets
    for_good: bool = False


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection ended; the member on it stays until its session timeout."""

    connection: int


# --- from ZooKeeper ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberFound:
    """At the start of the term, a member was found that had registered with an earlier coordinator."""

    member: MemberId
    options: RegistrationOptions


@dataclass(frozen=True, slots=True)
class RegistrationWritten:
    wanted: RegistrationWanted
    member: MemberId


@dataclass(frozen=True, slots=True)
class RegistrationFailed:
    """The registration failed. The machine passes ``reason`` from the shell to the front end unchanged."""

    wanted: RegistrationWanted
    reason: object


@dataclass(frozen=True, slots=True)
class RegistrationDeleted:
    """The registration was deleted: no member has its name any more."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class MemberRead:
    """The state on ZooKeeper of a member that wants to resume. ``held`` is ``None`` if it is known already, and
    ``outstanding`` is ``None`` if the channel is gone. ``fault`` names the unreadable part: the ledger or, without
    ``outstanding``, everything."""

    member: MemberId
    held: frozenset[TopicPartition] | None
    outstanding: tuple[CommandId, ...] | None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class CommandsListed:
    """The commands in a member's channel, in the order to carry them out."""

    member: MemberId
    commands: tuple[CommandId, ...]


@dataclass(frozen=True, slots=True)
class CommandRead:
    """A command was read. ``command`` is ``None`` if it was withdrawn; ``fault`` says why it is unreadable."""

    member: MemberId
    command_id: CommandId
    command: Command | None
    fault: str = ""


class Trouble(StrEnum):
    """The reasons why a write was not done."""

    MEMBERSHIP_LOST = "membership lost"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class MemberWritten:
    """The outcome of the write with this number. ``refused`` are topics that no longer exist. If ``trouble`` is set,
    nothing was written, for this ``reason``."""

    member: MemberId
    number: int
    refused: frozenset[str] = frozenset()
    trouble: Trouble | None = None
    reason: str = ""


# --- time --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepBegan:
    """The gateway serves its members again. ``leads``: its instance is certainly the elected one."""

    leads: bool


@dataclass(frozen=True, slots=True)
class TimersDue:
    """All earlier input has been handled: a member not heard from by now is late."""


Stimulus = (
    RegistrationWanted
    | ResumeWanted
    | Heard
    | ProbeAnswered
    | CommandAcknowledged
    | CommitWanted
    | SubscriptionWanted
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
