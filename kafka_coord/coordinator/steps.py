"""The result of ``plan``: a summary, and steps that the executor writes in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kafka_coord.model import (
    NO_PARTITIONS,
    Assignment,
    Cause,
    Command,
    Hold,
    Holds,
    Ledger,
    Observation,
    PartitionSet,
    Request,
    StartFetcher,
)


class GroupState(StrEnum):
    """The state of a group, as operators see it."""

    STABLE = "Stable"
    """Every member owns exactly its target, and every command is acknowledged."""
    REBALANCING = "Rebalancing"
    """Members have yet to stop or start partitions, or to acknowledge commands."""
    PAUSED = "Paused"
    """An operator paused the group. The coordinator still processes acknowledgements, but does not make new
    decisions."""
    EMPTY = "Empty"
    """The group has no members. Its offsets are retained until they expire."""
    DEAD = "Dead"
    """The group is being removed."""


AT_REST = frozenset({GroupState.STABLE, GroupState.EMPTY})
"""The states in which no partition has to move and nothing is outstanding."""


@dataclass(frozen=True, slots=True)
class SetTarget:
    """Write a new target. ``znode_version`` is the version of the target that it replaces, or ``None`` if there is no
    target yet. ``causes`` go into the group's history.

    The executor sets ``assignment.timestamp_ms``.
    """

    assignment: Assignment
    znode_version: int | None
    causes: tuple[Cause, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteLedgerAndCommands:
    """Write one consumer's ledger together with the commands that cause the change, in one multi.

    ``znode_version`` is the version of the ledger that is replaced, or ``None`` to create the ledger. ``drop_commands``
    names the command znodes of a dead incarnation, which are deleted first. Start points carry ``NO_OFFSET`` until the
    executor fills in the committed offsets. ``evict`` deletes the consumer's registration in the same multi.
    """

    ledger: Ledger
    znode_version: int | None
    commands: tuple[Command, ...] = ()
    drop_commands: tuple[str, ...] = ()
    evict: bool = False


@dataclass(frozen=True, slots=True)
class ForgetConsumer:
    """Remove the ledger and the outstanding commands of a consumer that is gone. ``ledger_version`` is ``None`` if the
    consumer has no ledger. With ``channel``, which is set only once the consumer is *retired* (ADR 3), also remove the
    channel znode. With ``refusals``, also remove the record of the topics that it was not allowed to read."""

    consumer: str
    ledger_version: int | None
    drop_commands: tuple[str, ...] = ()
    channel: bool = False
    refusals: bool = False


@dataclass(frozen=True, slots=True)
class WriteHolds:
    """Replace what the restored group's members held by what still counts of it, or remove it."""

    holds: Holds
    consumers: Mapping[str, Hold]


@dataclass(frozen=True, slots=True)
class EvictUnledgered:
    """Delete the registration of a consumer whose ledger is missing or unreadable."""

    consumer: str


@dataclass(frozen=True, slots=True)
class WriteOffsets:
    """Carry out a ``reset-offsets`` request."""

    request: Request


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    """Carry out a ``delete-offsets`` request."""

    request: Request


@dataclass(frozen=True, slots=True)
class RemoveGroup:
    """Remove the group with everything in it, because its offsets have expired or an operator requested the removal.
    With ``without_offsets``, remove it only if it has no offsets."""

    without_offsets: bool = False


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Write the response into an operator's request: "done" or "refused", and a message.

    If another step carries out the request, this step directly follows it, and the two are written together.
    """

    request: Request
    result: str
    message: str


Step = (
    SetTarget
    | WriteLedgerAndCommands
    | ForgetConsumer
    | WriteHolds
    | EvictUnledgered
    | WriteOffsets
    | DeleteOffsets
    | RemoveGroup
    | AnswerRequest
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one pass decided for one group.

    The executor writes ``steps`` in order and stops at the first step that fails. The steps already written are
    consistent, and the next pass continues from there. ``summary`` states the decision and its reason for the log.
    ``blocked`` contains the partitions that would be started if their committed offsets could be read.
    """

    group: str
    state: GroupState
    summary: str
    steps: tuple[Step, ...] = ()
    blocked: PartitionSet = NO_PARTITIONS

    @property
    def started(self) -> PartitionSet:
        """All partitions that the plan's commands start."""
        return PartitionSet.union(
            command.partitions
            for step in self.steps
            if isinstance(step, WriteLedgerAndCommands)
            for command in step.commands
            if isinstance(command, StartFetcher)
        )

    def quiet(self, observation: Observation) -> bool:
        """Returns whether the group has no pending work and is not waiting for anything."""
        return (
            self.state in AT_REST
            and not self.steps
            and not observation.unreadable
            and not observation.in_grace
            and observation.holds is None
            and not observation.requests
            and not any(observation.refused(consumer) for consumer in observation.refusals)
            and not any(channel.commands for channel in observation.channels.values())
        )
