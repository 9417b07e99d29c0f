"""Handles operator requests for one group: writes or deletes offsets, removes the group, or refuses the request and
says why. A group is also removed when its offsets have expired."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from kafka_coord.coordinator.plan.membership import GroupMembership
from kafka_coord.coordinator.plan.reasons import counted, names
from kafka_coord.coordinator.steps import (
    AnswerRequest,
    DeleteOffsets,
    GroupState,
    Plan,
    RemoveGroup,
    Step,
    WriteOffsets,
)
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
        fault = _fault(membership, partitions, ledgers)
        if fault:
            steps.append(refused(request, fault))
        elif reset and (missing := _missing(observation, partitions)):  # may be deleted, but not written
            steps.append(refused(replace(request, partitions=missing), _words(observation, missing)))
        else:
            step, verb = (WriteOffsets(request), "written") if reset else (DeleteOffsets(request), "deleted")
            return [*steps, step, done(request, f"offsets of {counted(len(partitions), 'partition')} {verb}")]
    return steps


def _fault(membership: GroupMembership, partitions: PartitionSet, ledgers: list[Ledger]) -> str:
    if not partitions:
        return "the request does not name any partition"
    unreadable = membership.ledger_unreadable
    if unreadable:
        return f"the ledger of {names(unreadable)} cannot be read, so its partitions are unknown; evict it first"
    for ledger in ledgers:
        held = ledger.held & partitions
        if held:
            return f"{ledger.consumer} holds {held}; stop it first"
    return ""


def _missing(observation: Observation, partitions: PartitionSet) -> PartitionSet:
    """Returns the partitions that do not exist."""
    topics = observation.topics
    return partitions - PartitionSet({one: topics[one].partitions for one in partitions.topics if one in topics})


def _words(observation: Observation, missing: PartitionSet) -> str:
    topic, numbers = next(iter(missing.by_topic()))
    is_there = topic in observation.topics
    return f"topic {topic} has no partition {min(numbers)}" if is_there else f"Kafka has no topic {topic}"


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


def group_removal(observation: Observation, membership: GroupMembership) -> Plan | None:
    """Returns the plan that removes the group, or ``None`` if the group must be kept."""
    answers = _asked_for(observation, membership)
    if answers is not None:
        return _plan(observation, "requested by an operator", answers)
    answers = _answers_if_expired(observation, membership)
    if answers is not None:
        return _plan(observation, "empty for longer than its offset retention period", answers)
    if observation.nothing_kept and _is_empty(observation, membership) and not pending(observation):
        return _plan(observation, "empty and without offsets", [], RemoveGroup(without_offsets=True))
    return None


def _plan(observation: Observation, why: str, answers: list[Step], removal: RemoveGroup | None = None) -> Plan:
    steps = (removal or RemoveGroup(), *answers)
    return Plan(observation.group, GroupState.DEAD, f"group removed: {why}", steps)


def _is_empty(observation: Observation, membership: GroupMembership) -> bool:
    """Returns whether the group has no members and is not paused."""
    has_members = membership.effective or membership.any_registration_unreadable
    return not has_members and observation.pause is None


def _asked_for(observation: Observation, membership: GroupMembership) -> list[Step] | None:
    """Returns the responses if an operator's delete-group request is granted. Returns ``None`` if there is no such
    request, or if it is refused."""
    deletions = [r for r in pending(observation) if r.type is RequestType.DELETE_GROUP and not outdated(observation, r)]
    if not deletions or membership.live or membership.any_registration_unreadable:
        return None
    steps: list[Step] = [done(deletions[0], f"group {observation.group} was removed")]
    for request in pending(observation):
        if request is not deletions[0]:
            again = request.type is RequestType.DELETE_GROUP
            answer = done if again else refused
            steps.append(answer(request, f"group {observation.group} was removed at an operator's request"))
    return steps


def _answers_if_expired(observation: Observation, membership: GroupMembership) -> list[Step] | None:
    """Returns the responses to pending requests if the group is to be removed because its offsets have expired,
    otherwise ``None``.

    ``coordinator.deadlines`` decides when the retention period has passed (``observation.retention_passed``).
    """
    if not observation.retention_passed or not _is_empty(observation, membership):
        return None
    requests = pending(observation)
    if any(request.type in {RequestType.RESET_OFFSETS, RequestType.DELETE_OFFSETS} for request in requests):
        return None
    return [
        refused(r, "the group was removed: it had been empty for longer than its offset retention period")
        for r in requests
    ]
