"""Operators' requests about one group: offsets to write or delete, and refusals with their reasons."""

from __future__ import annotations

from collections.abc import Iterable

from kafka_coord.coordinator.plan.membership import Membership
from kafka_coord.coordinator.plan.reasons import names
from kafka_coord.coordinator.steps import AnswerRequest, DeleteOffsets, Step, WriteOffsets
from kafka_coord.model import Ledger, Observation, PartitionSet, Request, RequestType

DONE, REFUSED = "done", "refused"


def pending(observation: Observation) -> tuple[Request, ...]:
    """Unanswered requests for this group, in order."""
    return tuple(r for r in observation.requests if not r.answered and r.group == observation.group)


def done(request: Request, message: str) -> AnswerRequest:
    return AnswerRequest(request, DONE, message)


def refused(request: Request, message: str) -> AnswerRequest:
    return AnswerRequest(request, REFUSED, message)


def offset_steps(observation: Observation, membership: Membership, holders: Iterable[Ledger]) -> list[Step]:
    """Resets and deletions of offsets, each done or refused. ``holders`` are the ledgers whose partitions count as
    held.

    A pass carries out at most one request, because its result depends on the offsets before it and changes them for
    the next one. The others wait for the next pass.
    """
    asked = [r for r in pending(observation) if r.type in {RequestType.RESET_OFFSETS, RequestType.DELETE_OFFSETS}]
    steps: list[Step] = []
    ledgers = list(holders) if asked else []
    for request in asked:
        reset = request.type is RequestType.RESET_OFFSETS
        partitions = PartitionSet.of(request.offsets) if reset else request.partitions
        fault = _fault(observation, membership, partitions, ledgers, reset=reset)
        if fault:
            steps.append(refused(request, fault))
        elif reset:
            return [*steps, WriteOffsets(request), done(request, f"offsets of {len(partitions)} partitions written")]
        else:
            deletion = DeleteOffsets(request, partitions)
            return [*steps, deletion, done(request, f"offsets of {len(partitions)} partitions deleted")]
    return steps


def _fault(
    observation: Observation, membership: Membership, partitions: PartitionSet, ledgers: list[Ledger], *, reset: bool
) -> str:
    if not partitions:
        return "the request names no partition"
    unreadable = membership.ledger_unreadable
    if unreadable:
        return f"the ledger of {names(unreadable)} cannot be read, so its partitions are unknown: evict it first"
    for ledger in ledgers:
        held = ledger.held & partitions
        if held:
            return f"{ledger.consumer} holds {held}: stop it first"
    if reset:  # offsets of a deleted topic may be deleted, but not written
        for topic, numbers in partitions.by_topic():
            if topic not in observation.topics:
                return f"Kafka has no topic {topic}"
            unknown = sorted(numbers - observation.topics[topic].partitions)
            if unknown:
                return f"topic {topic} has no partition {unknown[0]}"
    return ""


def other_answers(observation: Observation, membership: Membership) -> list[Step]:
    """Answers that change nothing."""
    steps: list[Step] = []
    members = {*membership.live, *membership.any_registration_unreadable}
    for request in pending(observation):
        if request.type is RequestType.LOOK:
            steps.append(done(request, "looked at"))
        elif request.type is RequestType.DELETE_GROUP and members:
            steps.append(refused(request, f"the group has members ({names(members)}): stop them first"))
    return steps
