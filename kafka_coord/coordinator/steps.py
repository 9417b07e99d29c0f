"""What ``plan`` returns: a sentence, and steps for the executor to write in order, each step all or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kafka_coord.model import (
    NO_PARTITIONS,
    Assignment,
    Cause,
    Command,
    Ledger,
    Observation,
    PartitionSet,
    Request,
    StartFetcher,
)


class GroupState(StrEnum):
    """The state of a group in one word, as operators see it."""

    STABLE = "Stable"
    """Every member owns exactly its target and every command is acknowledged."""
    REBALANCING = "Rebalancing"
    """Something is still to be stopped, started or acknowledged."""
    PAUSED = "Paused"
    """An operator forbade rebalances; acknowledgements are still settled, and nothing new is decided."""
    EMPTY = "Empty"
    """No members; offsets are kept until their retention ends."""
    DEAD = "Dead"
    """The group is being removed."""


AT_REST = frozenset({GroupState.STABLE, GroupState.EMPTY})
"""Nothing is to be moved, nor waited for."""


@dataclass(frozen=True, slots=True)
class SetTarget:
    """Write a new target; ``znode_version`` is the version it replaces, ``None`` where there is none yet. ``causes`` go
    into the group's history.

    The executor stamps ``assignment.timestamp_ms``.
    """

    assignment: Assignment
    znode_version: int | None
    causes: tuple[Cause, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteLedger:
    """Write one consumer's ledger together with the commands that cause the change, in one multi.

    ``znode_version`` is the version it replaces, ``None`` to create it. ``drop_commands`` are names of command znodes
    to delete with it (those of a dead incarnation). Start points carry ``NO_OFFSET``: the executor reads and fills in
    the committed offsets. ``evict`` deletes the consumer's registration in the same multi.
    """

    ledger: Ledger
    znode_version: int | None
    commands: tuple[Command, ...] = ()
    drop_commands: tuple[str, ...] = ()
    evict: bool = False


@dataclass(frozen=True, slots=True)
class ForgetConsumer:
    """Remove what is left of a consumer that is gone: its ledger (where ``ledger_version`` is not ``None``) and its
    outstanding commands; with ``channel`` the channel znode itself (only once the consumer is *retired*, see ADR 3)."""

    consumer: str
    ledger_version: int | None
    drop_commands: tuple[str, ...] = ()
    channel: bool = False


@dataclass(frozen=True, slots=True)
class EvictUnledgered:
    """Delete the registration of a consumer that has no ledger yet."""

    consumer: str


@dataclass(frozen=True, slots=True)
class WriteOffsets:
    """Carry out a ``reset-offsets`` request."""

    request: Request


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    """Carry out a ``delete-offsets`` request."""

    request: Request
    partitions: PartitionSet


@dataclass(frozen=True, slots=True)
class RemoveGroup:
    """Remove the group with everything in it (offsets retention ended, or an operator asked)."""


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Write the answer into an operator's request: "done" or "refused", and one sentence."""

    request: Request
    result: str
    message: str


Step = (
    SetTarget
    | WriteLedger
    | ForgetConsumer
    | EvictUnledgered
    | WriteOffsets
    | DeleteOffsets
    | RemoveGroup
    | AnswerRequest
)


@dataclass(frozen=True, slots=True)
class Plan:
    """One pass's decision about one group.

    ``steps`` are written in order and the executor stops at the first that fails; whatever was written is consistent
    by itself, and the next pass goes on from there. ``summary`` says what was decided and why, for the log.
    ``blocked`` are partitions that would be started if their committed offsets could be read.
    """

    group: str
    state: GroupState
    summary: str
    steps: tuple[Step, ...] = ()
    blocked: PartitionSet = NO_PARTITIONS

    @property
    def started(self) -> PartitionSet:
        """Every partition that a command of this plan starts."""
        return PartitionSet.union(
            command.partitions
            for step in self.steps
            if isinstance(step, WriteLedger)
            for command in step.commands
            if isinstance(command, StartFetcher)
        )

    def quiet(self, observation: Observation) -> bool:
        """Whether nothing is to be done about the group, nor waited for, until something happens to it."""
        return (
            self.state in AT_REST
            and not self.steps
            and not observation.unreadable
            and not observation.in_grace
            and not observation.requests
            and not any(channel.commands for channel in observation.channels.values())
        )
