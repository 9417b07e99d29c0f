"""An assignor's input and output. An assignor is a pure function: stateless, without I/O, clock or random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from kafka_coord.model import NO_PARTITIONS, Member, PartitionSet, Streams, TopicInfo


@dataclass(frozen=True, slots=True)
class AssignmentInputs:
    """The input to an assignor.

    ``members`` is sorted by consumer name. ``topics`` holds every topic that exists in Kafka and has a subscriber.
    ``subscriptions`` maps each consumer to its topics, sorted, with patterns resolved and without missing topics.
    ``current`` maps each consumer to the partitions that it has now. Each partition has at most one consumer.
    """

    members: Mapping[str, Member]
    topics: Mapping[str, TopicInfo]
    subscriptions: Mapping[str, tuple[str, ...]]
    current: Mapping[str, PartitionSet] = field(default_factory=dict)

    def streams_of(self, consumer: str, topic: str) -> int:
        """Returns how many streams a consumer runs for a subscribed topic. Does not check that a pattern matches the
        topic."""
        subscription = self.members[consumer].subscription
        return subscription.streams if subscription.is_wildcard else subscription.topics.get(topic, 1)

    def by_subscription(self) -> list[tuple[tuple[str, ...], list[str]]]:
        """Returns each distinct subscription as (topics, consumers). The consumers are sorted.

        Even a large group usually has few distinct subscriptions. They are compared by identity first, because hashing
        thousands of topics for each of thousands of members would take too long.
        """
        by_identity: dict[int, list[str]] = {}
        by_topics: dict[tuple[str, ...], list[str]] = {}
        for consumer in sorted(self.members):
            topics = self.subscriptions[consumer]
            consumers = by_identity.get(id(topics))
            if consumers is None:
                consumers = by_identity[id(topics)] = by_topics.setdefault(topics, [])
            consumers.append(consumer)
        return list(by_topics.items())

    def current_of(self, consumer: str) -> PartitionSet:
        return self.current.get(consumer, NO_PARTITIONS)


@dataclass(frozen=True, slots=True)
class Target:
    """The intended owner of each partition. It lists every member, and each partition of a subscribed topic exactly
    once.

    ``streams`` (consumer → partition → stream; stream 0 is omitted) is set by assignors that also choose streams.
    """

    members: Mapping[str, PartitionSet]
    streams: Mapping[str, Streams] = field(default_factory=dict)


@runtime_checkable
class Assignor(Protocol):
    """Computes targets. An assignor is named after its entry point in ``kafka_coord.assignors``. Its constructor takes
    no arguments.

    An assignor that fills ``Target.streams`` sets the attribute ``decides_streams = True``. For other assignors, the
    coordinator chooses the streams when it starts the partitions, and spreads each topic over the consumer's streams.
    """

    def assign(self, inputs: AssignmentInputs) -> Target:
        """Returns the target. The same inputs always give the same target, whatever the order of their mappings."""
        ...
