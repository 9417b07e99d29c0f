"""Releases the partitions of consumers that are gone and removes their znodes. Decides which consumers to evict: those
that an operator named, and those that did not acknowledge in time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import structs

from kafka_coord.coordinator.plan.member_update import MemberUpdate, only_held
from kafka_coord.coordinator.plan.membership import GroupMembership, outstanding
from kafka_coord.coordinator.plan.operator_requests import done, pending, refused
from kafka_coord.coordinator.steps import AnswerRequest, EvictUnledgered, ForgetConsumer, Step, WriteLedgerAndCommands
from kafka_coord.model import NO_PARTITIONS, Assignment, CommandType, Ledger, Observation, PartitionSet, RequestType
from kafka_coord.zk.store import ANY_VERSION


@dataclass(slots=True)
class Evictions:
    """The evictions in one pass and their reasons, by consumer. ``given_up`` contains the consumers in grace that lose
    their place. Each of the ``answers`` follows the step that carries out its request, so that the two are written
    together."""

    reasons: dict[str, str] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    answers: dict[str, list[AnswerRequest]] = field(default_factory=dict)

    def steps(
        self, updates: Mapping[str, MemberUpdate], observation: Observation, membership: GroupMembership
    ) -> list[Step]:
        steps: list[Step] = []
        for consumer in sorted(self.reasons):
            update = updates.get(consumer)
            if update is not None and update.seen is not None:
                steps.append(update.eviction())
            elif consumer in membership.registration_unreadable and consumer in observation.ledgers:
                ledger = observation.ledgers[consumer]
                steps.append(
                    WriteLedgerAndCommands(structs.replace(ledger, place=None), ledger.znode_version, evict=True)
                )
            else:
                # no ledger to update: it is missing, or it is unreadable and will be removed once the consumer is gone
                steps.append(EvictUnledgered(consumer))
            steps += self.answers.get(consumer, ())
        strangers = sorted(self.answers.keys() - {*self.reasons, *self.given_up, *membership.gone})
        return [*steps, *(answer for consumer in strangers for answer in self.answers[consumer])]


def decide_evictions(observation: Observation, membership: GroupMembership) -> Evictions:
    """Returns the evictions of consumers that an operator named and, unless the group is paused, of those that did not
    acknowledge in time."""
    found = Evictions()
    _asked_for(observation, membership, found)
    if observation.pause is None:
        _overdue(observation, membership, found)
    return found


def _asked_for(observation: Observation, membership: GroupMembership, found: Evictions) -> None:
    for request in pending(observation):
        if request.type is not RequestType.EVICT:
            continue
        consumer = request.consumer
        answers = found.answers.setdefault(consumer, [])
        if consumer in membership.live or consumer in membership.any_registration_unreadable:
            asked = f"operator asked: {request.reason}" if request.reason else "operator asked"
            found.reasons[consumer] = f"{asked}, by {request.by}" if request.by else asked
            answers.append(done(request, f"{consumer} was evicted and must register again"))
        elif consumer in membership.in_grace:
            found.given_up.add(consumer)
            answers.append(done(request, f"{consumer} was already gone; its place is no longer kept"))
        elif consumer in membership.gone:
            answers.append(done(request, f"{consumer} was already gone; its ledger and commands were removed"))
        else:
            answers.append(refused(request, f"{consumer} is not a member of group {observation.group}"))


def _overdue(observation: Observation, membership: GroupMembership, found: Evictions) -> None:
    for consumer in sorted(observation.overdue & membership.live.keys() - found.reasons.keys()):
        ledger = observation.ledgers.get(consumer)
        channel = observation.channels.get(consumer)
        if channel is None or not channel.commands:
            continue
        if ledger is not None and ledger.incarnation != membership.live[consumer].incarnation:
            continue
        member, limit_ms = membership.live[consumer], observation.settings.rebalance_timeout_for
        command = min(channel.commands, key=lambda one: limit_ms(member, one.type))
        verb = "stop" if command.type is CommandType.STOP_FETCHER else "start"
        seconds = limit_ms(member, command.type) / 1000
        found.reasons[consumer] = f"{verb}-fetcher ({command.name}) not acknowledged within the limit of {seconds:g} s"


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
