"""Decides whether a new target is due: a digest shows whether any of its inputs has changed. If it is, computes it with
an assignor, checks the result, and makes sure that the target fits in a znode."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from msgspec import structs

from kafka_coord.coordinator.assignors import AssignmentInputs, Assignor, Target
from kafka_coord.coordinator.plan.departures import Evictions
from kafka_coord.coordinator.plan.member_update import MAX_TARGET_BYTES, stale_topics, target_bytes
from kafka_coord.coordinator.plan.membership import GroupMembership, is_dead, target_is_unreadable
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
from kafka_coord.coordinator.steps import SetTarget, Step
from kafka_coord.model import (
    NO_PARTITIONS,
    Assignment,
    Cause,
    Member,
    Observation,
    PartitionSet,
    Request,
    RequestType,
    TopicInfo,
)
from kafka_coord.model.operations import DEFAULT_ASSIGNOR
from kafka_coord.model.partitions import ranges
from kafka_coord.zk.store import ANY_VERSION


@dataclass(frozen=True, slots=True)
class ComputedTarget:
    """A target, the assignor that computed it, and complaints about the assignor. If there is no valid target,
    ``target`` is ``None``."""

    target: Target | None
    assignor: str
    complaint: str = ""


def compute(inputs: AssignmentInputs, assignor: str, assignors: Mapping[str, Assignor]) -> ComputedTarget:
    """Computes the target. If a plug-in raises an exception or returns an invalid target, uses the default assignor and
    reports the fault."""
    try:
        proposed: Target = assignors[assignor].assign(inputs)
        fault = fault_in(proposed, inputs)
        if not fault:
            return ComputedTarget(proposed, assignor)
    except Exception as error:  # noqa: BLE001  a plug-in may fail in any way, and the group still needs a target
        fault = f"raised {error!r}"
    complaint = f"assignor {assignor} {cut(fault, 200)}; using {DEFAULT_ASSIGNOR}"
    target = assignors[DEFAULT_ASSIGNOR].assign(inputs)
    return ComputedTarget(target, DEFAULT_ASSIGNOR, complaint)


def fitted(
    computed: ComputedTarget, inputs: AssignmentInputs, assignor: Assignor, unfilled: Assignment
) -> ComputedTarget:
    """Returns the target, or one computed from scratch if the target does not fit in a znode. In a huge group,
    partition numbers become scattered after many moves. Starting from scratch moves many partitions, but the target
    then consists of runs again, so it usually fits. If it still does not, returns a complaint instead of a target."""
    size = _size(computed, unfilled)
    if size <= MAX_TARGET_BYTES:
        return computed
    afresh = replace(computed, target=assignor.assign(replace(inputs, current={})))
    if _size(afresh, unfilled) <= MAX_TARGET_BYTES:
        note = f"the target had grown to {size} bytes, so it was recomputed from scratch"
        return replace(afresh, complaint="; ".join(filter(None, (computed.complaint, note))))
    note = (
        f"no target: {counted(len(inputs.members), 'member')} and their partitions take {size} bytes,"
        f" more than the {MAX_TARGET_BYTES} that a znode may hold; split the group or shorten consumer names"
    )
    return ComputedTarget(None, computed.assignor, note)


def _size(computed: ComputedTarget, unfilled: Assignment) -> int:
    if computed.target is None:
        return 0
    return target_bytes(structs.replace(unfilled, members=computed.target.members, streams=computed.target.streams))


def fault_in(target: object, inputs: AssignmentInputs) -> str:
    """Returns what is wrong with an assignor's result, or an empty string."""
    if not isinstance(target, Target):
        return f"returned a {type(target).__name__}, not a Target"
    unknown = sorted(target.members.keys() - inputs.members.keys())
    if unknown:
        return f"named {unknown[0]!r}, which is not a member"
    counts: dict[str, int] = {}
    union: dict[str, set[int]] = {}
    subscribed: dict[str, frozenset[str]] = {}
    for topics, consumers in inputs.by_subscription():
        subscribed.update(dict.fromkeys(consumers, frozenset(topics)))
    for consumer, partitions in target.members.items():
        mine = subscribed[consumer]
        for topic, numbers in partitions.unordered():
            if topic not in mine:
                return f"gave {consumer} topic {topic}, which it does not subscribe to"
            counts[topic] = counts.get(topic, 0) + len(numbers)
            union.setdefault(topic, set()).update(numbers)
    for topic, info in inputs.topics.items():
        assigned = union.get(topic, set())
        if counts.get(topic, 0) != len(assigned):
            return f"gave partitions of {topic} to more than one member"
        if assigned != info.partitions:
            wrong = sorted(assigned ^ info.partitions)[:3]
            return f"left out or invented partitions of {topic} (such as {wrong})"
    return _fault_in_streams(target, inputs)


def _fault_in_streams(target: Target, inputs: AssignmentInputs) -> str:
    for consumer, streams in target.streams.items():
        if consumer not in inputs.members:
            return f"gave streams to {consumer!r}, which is not a member"
        owned = target.members.get(consumer, NO_PARTITIONS)
        for partition, stream in streams.items():
            if partition not in owned:
                return f"gave a stream for {partition} to {consumer}, which was not given that partition"
            if not 0 <= stream < inputs.streams_of(consumer, partition.topic):
                return f"gave {partition} to stream {stream} of {consumer}, which does not run that stream"
    return ""


NO_MEMBERS = "empty"
"""The digest of a group without members, whatever its topics and assignor."""


@dataclass(frozen=True, slots=True)
class ChosenAssignor:
    """The assignor to use. If a requested assignor is not used, ``complaint`` says why."""

    name: str
    complaint: str = ""


def resolve(members: Mapping[str, Member], topics: Mapping[str, TopicInfo]) -> dict[str, tuple[str, ...]]:
    """Maps each consumer to its subscribed topics that exist, sorted. A pattern that many consumers share is matched
    only once."""
    matched: dict[object, tuple[str, ...]] = {}
    resolved = {}
    for consumer, member in members.items():
        subscription = member.subscription
        if not subscription.is_wildcard:
            key: object = frozenset(subscription.topics)
            if key not in matched:
                matched[key] = tuple(sorted(topic for topic in subscription.topics if topic in topics))
        else:
            key = (subscription.kind, subscription.pattern)
            if key not in matched:
                matched[key] = tuple(sorted(topic for topic in topics if subscription.wants(topic)))
        resolved[consumer] = matched[key]
    return resolved


def unread_topics(observation: Observation, effective: Mapping[str, Member]) -> tuple[str, ...]:
    """Returns the topics that every subscribed member is refused. They have no owner."""
    if not observation.refusals:
        return ()
    subscribed = resolve(effective, observation.topics)
    refused = {topic for c in effective for topic in observation.refused(c) if topic in subscribed[c]}
    read = {topic for c in effective for topic in subscribed[c] if topic not in observation.refused(c)}
    return tuple(sorted(refused - read))


def choose_assignor(
    observation: Observation, live: Mapping[str, Member], assignors: Mapping[str, Assignor]
) -> ChosenAssignor:
    """Returns the assignor in the settings, or else the one that all live members with a preference agree on. If there
    is neither, or its name is unknown, returns the default."""
    name = observation.settings.assignor
    complaint = ""
    if name is None:
        named = sorted({member.assignor for member in live.values() if member.assignor is not None})
        if len(named) > 1:
            complaint = f"members request different assignors ({', '.join(named[:4])}); using {DEFAULT_ASSIGNOR}"
        name = named[0] if len(named) == 1 else DEFAULT_ASSIGNOR
    if name not in assignors:
        known = ", ".join(sorted(assignors))
        return ChosenAssignor(DEFAULT_ASSIGNOR, f"no assignor {name[:60]!r} (known: {known}); using {DEFAULT_ASSIGNOR}")
    return ChosenAssignor(name, complaint)


def assignment_inputs(
    observation: Observation, membership: GroupMembership, effective: Mapping[str, Member]
) -> AssignmentInputs:
    subscriptions = resolve(effective, observation.topics)
    for consumer, chosen in subscriptions.items():
        refused = observation.refused(consumer)
        if refused:  # the member may not read these topics now, so others get them
            subscriptions[consumer] = tuple(topic for topic in chosen if topic not in refused)
    wanted = frozenset().union(*{id(chosen): chosen for chosen in subscriptions.values()}.values())
    topics = {topic: observation.topics[topic] for topic in sorted(wanted)}
    return AssignmentInputs(effective, topics, subscriptions, _current(observation, membership, effective))


def _current(
    observation: Observation, membership: GroupMembership, effective: Mapping[str, Member]
) -> dict[str, PartitionSet]:
    """Returns the current partitions of each member. A partition belongs to the member that owns it, or else to the one
    that the stored target names, or else to the one that is stopping it."""
    claimed: dict[str, set[int]] = {}
    current: dict[str, PartitionSet] = {}

    def claim(consumer: str, partitions: PartitionSet) -> None:
        mine = current.get(consumer, NO_PARTITIONS)
        free = partitions - mine
        taken: dict[str, frozenset[int]] = {}
        for topic, numbers in free.unordered():
            others = claimed.setdefault(topic, set())
            if not others.isdisjoint(numbers):
                taken[topic] = numbers & others
            others |= numbers
        if taken:
            free = free - PartitionSet(taken)
        current[consumer] = mine | free

    ledgers = {
        consumer: ledger
        for consumer, ledger in sorted(observation.ledgers.items())
        if consumer in effective and not (consumer in membership.live and is_dead(ledger, membership.live[consumer]))
    }
    for consumer, ledger in ledgers.items():
        claim(consumer, ledger.owned)
    if observation.assignment is not None:
        for consumer in sorted(observation.assignment.members.keys() & effective.keys()):
            claim(consumer, observation.assignment.members[consumer])
    for consumer, ledger in ledgers.items():
        claim(consumer, ledger.stopping)
    return current


def digest(inputs: AssignmentInputs, assignor: str) -> str:
    """Returns a digest of the members (name, topics, streams, capacity, rack), the partitions and identities of topics,
    and the assignor.

    The digest leaves out everything that does not change a target (incarnations, modes, timeouts). It also leaves out
    the location of replicas, because moving a replica is no reason to interrupt a consumer.
    """
    if not inputs.members:
        return NO_MEMBERS
    hashed = hashlib.sha256(f"1 {assignor}\n".encode())
    for name, topic in inputs.topics.items():
        hashed.update(f"t {name} {topic.identity} {_extent(topic.partitions)}\n".encode())
    subscribed: dict[object, str] = {}
    for consumer, topics in inputs.subscriptions.items():
        member = inputs.members[consumer]
        subscription = member.subscription
        # Comparing topics by identity is cheap, and sufficient: resolve() returns the same object for all members with
        # the same topics or pattern.
        counts = subscription.streams if subscription.is_wildcard else frozenset(subscription.topics.items())
        key = (id(topics), counts)
        if key not in subscribed:
            subscribed[key] = " ".join(f"{topic}:{inputs.streams_of(consumer, topic)}" for topic in topics)
        hashed.update(f"m {consumer} {member.capacity} {member.rack!r} {subscribed[key]}\n".encode())
    return hashed.hexdigest()[:32]


def _extent(numbers: frozenset[int]) -> str:
    """Like :func:`ranges`, but does not sort in the usual case of 0 to n-1."""
    if numbers and min(numbers) == 0 and max(numbers) == len(numbers) - 1:
        return f"0-{len(numbers) - 1}"
    return ranges(numbers)


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
    return {
        consumer
        for consumer, ledger in observation.ledgers.items()
        if ledger.place is not None and ledger.place.grace_ms(observation.departures.get(consumer))
    }
