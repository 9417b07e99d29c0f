"""A short notation for groups in tests of assignors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafka_coord.coordinator.assignors import AssignmentInputs, Target
from kafka_coord.model import Member, PartitionSet, Subscription, TopicInfo, TopicPartition

Subscribed = Mapping[str, Iterable[str] | Mapping[str, int]]


def group(
    subscriptions: Subscribed,
    topics: Mapping[str, int],
    current: Mapping[str, Mapping[str, Iterable[int]]] | Mapping[str, PartitionSet] | None = None,
    *,
    capacities: Mapping[str, int] | None = None,
    racks: Mapping[str, str] | None = None,
    replica_racks: Mapping[str, Mapping[int, Iterable[str]]] | None = None,
) -> AssignmentInputs:
    """Makes inputs. ``subscriptions`` maps each consumer to its topics, or to a map of topic → streams. ``topics`` maps
    each topic to its number of partitions."""
    chosen: dict[int, Subscription] = {}
    for wanted_topics in subscriptions.values():
        if id(wanted_topics) not in chosen:
            chosen[id(wanted_topics)] = Subscription.to(wanted_topics)
    members = {
        consumer: Member(
            consumer,
            number + 1,
            chosen[id(subscriptions[consumer])],
            capacity=(capacities or {}).get(consumer, 1),
            rack=(racks or {}).get(consumer),
        )
        for number, consumer in enumerate(sorted(subscriptions))
    }
    near = replica_racks or {}
    infos = {
        name: TopicInfo(
            name, frozenset(range(count)), "id", {p: frozenset(found) for p, found in near.get(name, {}).items()}
        )
        for name, count in sorted(topics.items())
    }
    resolved = {key: tuple(sorted(t for t in found.topics if t in infos)) for key, found in chosen.items()}
    subscribed = {consumer: resolved[id(subscriptions[consumer])] for consumer in members}
    held = {
        c: found if isinstance(found, PartitionSet) else PartitionSet(found) for c, found in (current or {}).items()
    }
    wanted = {topic for topics_of in resolved.values() for topic in topics_of}
    return AssignmentInputs(members, {t: i for t, i in infos.items() if t in wanted}, subscribed, held)


def written(target: Target) -> dict[str, str]:
    """Maps each consumer to text like "flights[0-3] planes[1]", for comparison in tests."""
    return {consumer: str(partitions) for consumer, partitions in target.members.items()}


def by_stream(target: Target, topic: str) -> dict[str, list[int]]:
    """Maps each thread, named as in Kafka 0.8 ("consumer-stream"), to its partitions."""
    found: dict[str, list[int]] = {}
    for consumer, partitions in target.members.items():
        for number in sorted(partitions.of_topic(topic)):
            stream = target.streams.get(consumer, {}).get(TopicPartition(topic, number), 0)
            found.setdefault(f"{consumer}-{stream}", []).append(number)
    return found


def sizes(target: Target) -> dict[str, int]:
    return {consumer: len(partitions) for consumer, partitions in target.members.items()}


def moves(inputs: AssignmentInputs, target: Target) -> int:
    """The number of partitions that get another owner."""
    return sum(len(partitions - inputs.current_of(consumer)) for consumer, partitions in target.members.items())
