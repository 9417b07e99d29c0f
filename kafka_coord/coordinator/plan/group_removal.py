"""Decides whether to remove a group, at an operator's request or because its offsets have expired."""

from __future__ import annotations

from kafka_coord.coordinator.plan.membership import GroupMembership
from kafka_coord.coordinator.plan.operator_requests import done, outdated, pending, refused
from kafka_coord.coordinator.steps import GroupState, Plan, RemoveGroup, Step
from kafka_coord.model import Observation, RequestType


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
