"""The inputs that a target is computed from, and a digest that shows whether any of them has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from kafka_coord.coordinator.assignors import AssignmentInputs, Assignor
from kafka_coord.coordinator.plan.membership import GroupMembership, is_dead
from kafka_coord.model import NO_PARTITIONS, Member, Observation, PartitionSet, TopicInfo
from kafka_coord.model.operations import DEFAULT_ASSIGNOR
from kafka_coord.model.partitions import ranges

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
