"""What operators asked of one group: whom to evict, which offsets to write, what to refuse and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kafka_coord.coordinator.plan.member_update import Draft
from kafka_coord.coordinator.plan.membership import Standing
from kafka_coord.coordinator.plan.reasons import names
from kafka_coord.coordinator.steps import AnswerRequest, DeleteOffsets, EvictUnledgered, Step, WriteLedger, WriteOffsets
from kafka_coord.model import CommandType, Ledger, Observation, PartitionSet, Request, RequestType

DONE, REFUSED = "done", "refused"


def pending(observation: Observation) -> tuple[Request, ...]:
    """Unanswered requests for this group, in order."""
    return tuple(r for r in observation.requests if not r.answered and r.group == observation.group)


def done(request: Request, message: str) -> AnswerRequest:
    return AnswerRequest(request, DONE, message)


def refused(request: Request, message: str) -> AnswerRequest:
    return AnswerRequest(request, REFUSED, message)


@dataclass(slots=True)
class Evictions:
    """Who is evicted in this pass and why; ``given_up`` are consumers in grace whose place is given up."""

    reasons: dict[str, str] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    answers: list[AnswerRequest] = field(default_factory=list)

    def steps(self, drafts: Mapping[str, Draft], observation: Observation, standing: Standing) -> list[Step]:
        steps: list[Step] = []
        for consumer in sorted(self.reasons):
            draft = drafts.get(consumer)
            if draft is not None and draft.seen is not None:
                steps.append(draft.eviction())
            elif consumer in standing.muted and consumer in observation.ledgers:
                ledger = observation.ledgers[consumer]
                steps.append(WriteLedger(replace(ledger, place=None), ledger.znode_version, evict=True))
            else:
                # without a ledger, or with one that cannot be read and is forgotten once the consumer is gone
                steps.append(EvictUnledgered(consumer))
        return [*steps, *self.answers]


def evictions(observation: Observation, standing: Standing) -> Evictions:
    """Those an operator named, and (unless paused) those that did not obey in time."""
    found = Evictions()
    for request in pending(observation):
        if request.type is not RequestType.EVICT:
            continue
        consumer = request.consumer
        if consumer in standing.live or consumer in standing.unreadable_members:
            found.reasons[consumer] = f"operator asked: {request.reason}" if request.reason else "operator asked"
            found.answers.append(done(request, f"{consumer} is evicted and must register again"))
        elif consumer in standing.kept:
            found.given_up.add(consumer)
            found.answers.append(done(request, f"{consumer} was gone already; its place is not kept any longer"))
        else:
            found.answers.append(refused(request, f"{consumer} is not a member of group {observation.group}"))
    if observation.pause is None:
        seconds = observation.settings.rebalance_timeout_ms / 1000
        for consumer in sorted(observation.overdue & standing.live.keys() - found.reasons.keys()):
            ledger = observation.ledgers.get(consumer)
            channel = observation.channels.get(consumer)
            if channel is None or not channel.commands:
                continue
            if ledger is not None and ledger.incarnation != standing.live[consumer].incarnation:
                continue
            verb = "stop" if channel.commands[0].type is CommandType.STOP_FETCHER else "start"
            found.reasons[consumer] = (
                f"{verb}-fetcher ({channel.commands[0].name}) not acknowledged within the {seconds:g} s it may take"
            )
    return found


def offset_steps(observation: Observation, standing: Standing, holders: Iterable[Ledger]) -> list[Step]:
    """Resets and deletions of offsets, each done or refused. ``holders`` are the ledgers that count as holding.

    One that is to be done is the only one: what each writes is worked out from what is there before any is written,
    and the next would find it otherwise. The others wait for the next look.
    """
    asked = [r for r in pending(observation) if r.type in {RequestType.RESET_OFFSETS, RequestType.DELETE_OFFSETS}]
    steps: list[Step] = []
    ledgers = list(holders) if asked else []
    for request in asked:
        reset = request.type is RequestType.RESET_OFFSETS
        partitions = PartitionSet.of(request.offsets) if reset else request.partitions
        fault = _fault(observation, standing, partitions, ledgers, reset=reset)
        if fault:
            steps.append(refused(request, fault))
        elif reset:
            return [*steps, WriteOffsets(request), done(request, f"offsets of {len(partitions)} partitions written")]
        else:
            deletion = DeleteOffsets(request, partitions)
            return [*steps, deletion, done(request, f"offsets of {len(partitions)} partitions deleted")]
    return steps


def _fault(
    observation: Observation, standing: Standing, partitions: PartitionSet, ledgers: list[Ledger], *, reset: bool
) -> str:
    if not partitions:
        return "the request names no partition"
    if standing.opaque:
        return f"the ledger of {names(standing.opaque)} cannot be read, so what it holds is not known: evict it first"
    for ledger in ledgers:
        held = ledger.held & partitions
        if held:
            return f"{ledger.consumer} holds {held}: stop it first"
    if reset:  # offsets of a topic that is gone may be deleted, but not written
        for topic, numbers in partitions.by_topic():
            if topic not in observation.topics:
                return f"Kafka has no topic {topic}"
            unknown = sorted(numbers - observation.topics[topic].partitions)
            if unknown:
                return f"topic {topic} has no partition {unknown[0]}"
    return ""


def removal_steps(observation: Observation, standing: Standing) -> list[Step] | None:
    """The answers when an operator's delete-group is granted; ``None`` when there is none, or it is refused."""
    asked = [r for r in pending(observation) if r.type is RequestType.DELETE_GROUP]
    if not asked or standing.live or standing.unreadable_members:
        return None
    steps: list[Step] = [done(asked[0], f"group {observation.group} was removed")]
    for request in pending(observation):
        if request is not asked[0]:
            again = request.type is RequestType.DELETE_GROUP
            answer = done if again else refused
            steps.append(answer(request, f"group {observation.group} was removed at an operator's request"))
    return steps


def expiry_steps(observation: Observation, standing: Standing) -> list[Step] | None:
    """The answers when the group is empty past its retention; ``None`` while somebody still wants something of it."""
    nobody = not standing.effective and not standing.unreadable_members
    if not observation.expired or not nobody or observation.pause is not None:
        return None
    asked = pending(observation)
    if any(request.type in {RequestType.RESET_OFFSETS, RequestType.DELETE_OFFSETS} for request in asked):
        return None
    return [refused(r, "the group was removed: empty for longer than its offsets are kept") for r in asked]


def other_answers(observation: Observation, standing: Standing) -> list[Step]:
    """Answers that change nothing."""
    steps: list[Step] = []
    for request in pending(observation):
        if request.type is RequestType.LOOK:
            steps.append(done(request, "looked at"))
        elif request.type is RequestType.DELETE_GROUP and (standing.live or standing.unreadable_members):
            members = {*standing.live, *standing.unreadable_members}
            steps.append(refused(request, f"the group has members ({names(members)}): stop them first"))
    return steps
