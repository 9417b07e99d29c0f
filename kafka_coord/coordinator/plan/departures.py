"""Releases the partitions of consumers that are gone and removes their znodes."""

from __future__ import annotations

from msgspec import structs

from kafka_coord.coordinator.plan.evictions import Evictions
from kafka_coord.coordinator.plan.member_update import only_held
from kafka_coord.coordinator.plan.membership import GroupMembership, outstanding
from kafka_coord.coordinator.steps import ForgetConsumer, Step, WriteLedgerAndCommands
from kafka_coord.model import NO_PARTITIONS, Assignment, Ledger, Observation, PartitionSet
from kafka_coord.zk.store import ANY_VERSION


def forget(
    observation: Observation, membership: GroupMembership, evictions: Evictions
) -> tuple[dict[str, PartitionSet], list[Step]]:
    """Returns the released partitions by consumer, and the steps that remove consumers whose place is not kept.

    A channel is removed only once its consumer is retired, and only if all its children are commands.
    """
    released: dict[str, PartitionSet] = {}
    steps: list[Step] = []
    for consumer in sorted({*membership.gone, *evictions.given_up}):
        channel = outstanding(observation, consumer)
        ledger = observation.ledgers.get(consumer)
        drop = tuple(command.name for command in channel.commands)
        retired = consumer in observation.retired and consumer in observation.channels and not channel.strays
        version: int | None = None
        if ledger is not None:
            version = ledger.znode_version
            released[consumer] = ledger.held
        elif consumer in membership.any_ledger_unreadable:
            version = ANY_VERSION
            released[consumer] = NO_PARTITIONS
        refuses = consumer in observation.refusals
        if version is not None or drop or retired or refuses:
            steps.append(ForgetConsumer(consumer, version, drop, retired, refuses))
        if consumer not in evictions.reasons:
            steps += evictions.answers.get(consumer, ())
    return released, steps


def cut_down(
    observation: Observation, membership: GroupMembership, evictions: Evictions, target: Assignment | None
) -> tuple[list[Ledger], list[Step]]:
    """Returns the ledgers of consumers in grace, reduced where necessary, and the writes that store the reduced
    ledgers.

    A dead incarnation holds no partitions. Its ledger keeps only those that the target reserves for its name, so that
    its place stays visible. Its commands are removed, so the consumer starts from scratch when it returns.
    """
    ledgers: list[Ledger] = []
    steps: list[Step] = []
    for consumer in sorted(membership.in_grace.keys() - evictions.given_up):
        ledger = observation.ledgers[consumer]
        owned = ledger.owned
        if target is not None:
            owned = owned & target.members.get(consumer, NO_PARTITIONS)
        commands = tuple(command.name for command in outstanding(observation, consumer).commands)
        if owned != ledger.owned or ledger.stopping or commands:
            cut = only_held(structs.replace(ledger, owned=owned, stopping=NO_PARTITIONS))
            steps.append(WriteLedgerAndCommands(cut, ledger.znode_version, drop_commands=commands))
            ledger = cut
        ledgers.append(ledger)
    return ledgers, steps
