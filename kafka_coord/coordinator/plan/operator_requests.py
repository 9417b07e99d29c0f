"""Handles operator requests for one group: writes or deletes offsets, or refuses the request and says why."""

from __future__ import annotations

from collections.abc import Iterable

from kafka_coord.coordinator.plan.membership import GroupMembership
from kafka_coord.coordinator.plan.reasons import counted, names
from kafka_coord.coordinator.steps import AnswerRequest, DeleteOffsets, Step, WriteOffsets
from kafka_coord.model import Ledger, Observation, PartitionSet, Request, RequestType

DONE, REFUSED = "done", "refused"


def pending(observation: Observation) -> tuple[Request, ...]:
    """Returns the unanswered requests for the observed group, in order."""
    return tuple(r for r in observation.requests if not r.answered and r.group == observation.group)


def done(request: Request, message: str) -> AnswerRequest:
    return AnswerRequest(request, DONE, message)


def refused(request: Request, message: str) -> AnswerRequest:
    return AnswerRequest(request, REFUSED, message)


def outdated(observation: Observation, request: Request) -> bool:
    """Returns whether an offset has changed since the zxid that the request names. If the offsets' zxid was not read,
    returns false."""
    return 0 < request.unchanged_since < (observation.offsets_zxid or 0)


def offset_steps(observation: Observation, membership: GroupMembership, holders: Iterable[Ledger]) -> list[Step]:
    """Returns the steps that carry out or refuse requests to reset or delete offsets. ``holders`` contains the ledgers
    whose partitions count as held.

    A pass carries out at most one such request, because it changes offsets that the next one may depend on. Any others
    wait for the next pass.
    """
    requests = [r for r in pending(observation) if r.type in {RequestType.RESET_OFFSETS, RequestType.DELETE_OFFSETS}]
    steps: list[Step] = []
    ledgers = list(holders) if requests else []
    for request in requests:
        reset = request.type is RequestType.RESET_OFFSETS
        partitions = PartitionSet.of(request.offsets) if reset else request.partitions
        fault = _fault(observation, membership, partitions, ledgers, reset=reset)
        if fault:
            steps.append(refused(request, fault))
        else:
            step, verb = (WriteOffsets(request), "written") if reset else (DeleteOffsets(request), "deleted")
            return [*steps, step, done(request, f"offsets of {counted(len(partitions), 'partition')} {verb}")]
    return steps


def _fault(
    observation: Observation,
    membership: GroupMembership,
    partitions: PartitionSet,
    ledgers: list[Ledger],
    *,
    reset: bool,
) -> str:
    if not partitions:
        return "the request does not name any partition"
    unreadable = membership.ledger_unreadable
    if unreadable:
        return f"the ledger of {names(unreadable)} cannot be read, so its partitions are unknown; evict it first"
    for ledger in ledgers:
        held = ledger.held & partitions
        if held:
            return f"{ledger.consumer} holds {held}; stop it first"
    if reset:  # offsets of a deleted topic may be deleted, but not written
        for topic, numbers in partitions.by_topic():
            if topic not in observation.topics:
                return f"Kafka has no topic {topic}"
            unknown = sorted(numbers - observation.topics[topic].partitions)
            if unknown:
                return f"topic {topic} has no partition {unknown[0]}"
    return ""


def other_answers(observation: Observation, membership: GroupMembership) -> list[Step]:
    """Returns the responses to the requests that do not change the group."""
    steps: list[Step] = []
    members = {*membership.live, *membership.any_registration_unreadable}
    for request in pending(observation):
        if request.type is RequestType.LOOK:
            steps.append(done(request, "the group was checked"))
        elif request.type is RequestType.DELETE_GROUP and members:
            steps.append(refused(request, f"the group has members ({names(members)}); stop them first"))
        elif request.type is RequestType.DELETE_GROUP and outdated(observation, request):
            steps.append(refused(request, "the group's offsets have changed since the request"))
    return steps
