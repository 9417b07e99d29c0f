"""Decides whether a new target is due, and if so, computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import structs

from kafka_coord.coordinator.assignors import Assignor
from kafka_coord.coordinator.plan.evictions import Evictions
from kafka_coord.coordinator.plan.inputs import NO_MEMBERS, assignment_inputs, choose_assignor, digest, unread_topics
from kafka_coord.coordinator.plan.member_update import stale_topics
from kafka_coord.coordinator.plan.membership import GroupMembership, target_is_unreadable
from kafka_coord.coordinator.plan.operator_requests import done, pending
from kafka_coord.coordinator.plan.reasons import (
    MAX_REASON_CHARS,
    causes_of,
    counted,
    cut,
    how_they_went,
    how_they_were_evicted,
    names,
    reason_for_target,
)
from kafka_coord.coordinator.plan.target import compute, fitted
from kafka_coord.coordinator.steps import SetTarget, Step
from kafka_coord.model import NO_PARTITIONS, Assignment, Cause, Observation, Request, RequestType
from kafka_coord.zk.store import ANY_VERSION


@dataclass(slots=True)
class TargetDecision:
    """The new or stored target to follow. ``moving`` is true if stops and starts may be written to reach it."""

    target: Assignment | None
    moving: bool
    steps: list[Step] = field(default_factory=list)
    summary: str = ""
    complaints: list[str] = field(default_factory=list)


def decide_target(
    observation: Observation, membership: GroupMembership, evictions: Evictions, assignors: Mapping[str, Assignor]
) -> TargetDecision:
    stored = observation.assignment
    requests = [r for r in pending(observation) if r.type is RequestType.REBALANCE]
    if observation.pause is not None:
        waiting = [f"{counted(len(requests), 'rebalance request')} pending until it is resumed"] if requests else []
        return TargetDecision(stored, moving=False, complaints=waiting)
    unreadable = target_is_unreadable(observation)
    if unreadable and not requests:
        complaint = (
            "the stored target cannot be read, so nothing is moved; request a rebalance to replace it"
            f" (kafka-coord groups rebalance {observation.group})"
        )
        return TargetDecision(None, moving=False, complaints=[complaint])
    out = evictions.reasons.keys() | evictions.given_up
    effective = {consumer: member for consumer, member in membership.effective.items() if consumer not in out}
    if not effective:
        return _without_members(observation, evictions, requests, unreadable=unreadable)
    live = {consumer: member for consumer, member in effective.items() if consumer in membership.live}
    chosen = choose_assignor(observation, live, assignors)
    inputs = assignment_inputs(observation, membership, effective)
    fingerprint = digest(inputs, chosen.name)
    complaints = [chosen.complaint] if chosen.complaint else []
    unread = unread_topics(observation, effective)
    if unread:
        complaints.append(
            f"no member may read {names(unread)}, so {'it has' if len(unread) == 1 else 'they have'} no owner"
        )
    if stored is not None and stored.inputs == fingerprint and not requests:
        return TargetDecision(stored, moving=True, complaints=complaints)
    computed = compute(inputs, chosen.name, assignors)
    reason = reason_for_target(
        stored,
        inputs,
        computed.assignor,
        requests=requests,
        evicted=evictions.reasons,
        recreated=stale_topics(observation.ledgers.values(), observation.topics),
        with_place=_with_place(observation),
        departures=observation.departures,
        refused={consumer: topics for consumer in effective if (topics := observation.refused(consumer))},
    )
    unfilled = Assignment(
        generation=_next_generation(observation),
        epoch=observation.epoch,
        inputs=fingerprint,
        assignor=computed.assignor,
        reason=reason.text,
        members={},
    )
    computed = fitted(computed, inputs, assignors[computed.assignor], unfilled)
    complaints += [computed.complaint] if computed.complaint else []
    if computed.target is None:
        return TargetDecision(stored, moving=stored is not None, complaints=complaints)
    members = {consumer: computed.target.members.get(consumer, NO_PARTITIONS) for consumer in effective}
    target = structs.replace(unfilled, members=members, streams=computed.target.streams)
    moved = sum(len(partitions - inputs.current_of(consumer)) for consumer, partitions in members.items())
    summary = f"generation {target.generation}: {target.reason}; {counted(moved, 'partition')} to move"
    steps: list[Step] = [_set_target(target, observation, reason.causes, unreadable=unreadable)]
    steps += [done(request, cut(summary, 300)) for request in requests]
    return TargetDecision(target, moving=True, steps=steps, summary=summary, complaints=complaints)


def _without_members(
    observation: Observation, evictions: Evictions, requests: list[Request], *, unreadable: bool
) -> TargetDecision:
    """Returns the decision to set an empty target, unless the stored target is already empty or there is none. An
    empty target records that the group is empty, and preserves the generation."""
    stored = observation.assignment
    answers: list[Step] = [done(request, "the group has no members; nothing to move") for request in requests]
    if not unreadable and (stored is None or not stored.members):
        return TargetDecision(stored, moving=True, steps=answers)
    last = _how_the_last_went(observation, evictions)
    target = Assignment(
        generation=_next_generation(observation),
        epoch=observation.epoch,
        inputs=NO_MEMBERS,
        assignor=stored.assignor if stored is not None else "",
        reason=cut(f"no members remain ({last})" if last else "no members remain", MAX_REASON_CHARS),
        members={},
    )
    summary = f"generation {target.generation}: {target.reason}"
    grace_ended = stored is not None and stored.members.keys() <= _with_place(observation)
    gone = (stored.members.keys() if stored is not None else set()) - evictions.reasons.keys()
    kinds = {Cause.GRACE_ENDED} if last and grace_ended else causes_of(gone, observation.departures)
    kinds |= {Cause.MEMBER_EVICTED} if evictions.reasons else set()
    causes = tuple(cause for cause in Cause if cause in kinds) or (Cause.MEMBER_LEFT,)
    set_target = _set_target(target, observation, causes, unreadable=unreadable)
    return TargetDecision(target, moving=True, steps=[set_target, *answers], summary=summary)


def _how_the_last_went(observation: Observation, evictions: Evictions) -> str:
    stored = observation.assignment
    if stored is None or not stored.members:
        return ""
    out = evictions.reasons.keys() & stored.members.keys()
    evicted = how_they_were_evicted({consumer: evictions.reasons[consumer] for consumer in out})
    return ", ".join([*how_they_went(stored.members.keys() - out, observation.departures), *evicted])


def _set_target(
    target: Assignment, observation: Observation, causes: tuple[Cause, ...], *, unreadable: bool
) -> SetTarget:
    stored = observation.assignment
    version = ANY_VERSION if unreadable else stored.znode_version if stored is not None else None
    return SetTarget(target, version, causes)


def _next_generation(observation: Observation) -> int:
    """Returns a generation that is higher than all earlier ones, even if the stored target was lost."""
    known = [observation.generation_floor, *(ledger.generation for ledger in observation.ledgers.values())]
    if observation.assignment is not None:
        known.append(observation.assignment.generation)
    return max(known) + 1


def _with_place(observation: Observation) -> set[str]:
    return {consumer for consumer, ledger in observation.ledgers.items() if ledger.place is not None}
