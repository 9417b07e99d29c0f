"""An assignor's input and output. An assignor is pure: no I/O, no clock, no randomness, no state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from kafka_coord.model import NO_PARTITIONS, Member, PartitionSet, Streams, TopicInfo


@dataclass(frozen=True, slots=True)
class AssignmentInputs:
    """The input of an assignor.

    ``members`` is sorted by consumer name. ``topics`` holds every topic that exists in Kafka and has a subscriber. In
    ``subscriptions`` (consumer → its topics, sorted), patterns are matched and missing topics are left out. ``current``
    maps consumers to the partitions they have now. A partition has at most one consumer.
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
        """Returns each distinct subscription as (topics, consumers), with the consumers sorted.

        A large group has few distinct subscriptions. This method compares them by identity first, because hashing
        thousands of topics for each of thousands of members would take too long.
        """
        known: dict[int, list[str]] = {}
        found: dict[tuple[str, ...], list[str]] = {}
        for consumer in sorted(self.members):
            topics = self.subscriptions[consumer]
            consumers = known.get(id(topics))
            if consumers is None:
                consumers = known[id(topics)] = found.setdefault(topics, [])
            consumers.append(consumer)
        return list(found.items())

    def current_of(self, consumer: str) -> PartitionSet:
        return self.current.get(consumer, NO_PARTITIONS)


@dataclass(frozen=True, slots=True)
class Target:
    """The intended owner of each partition. Lists every member, and each partition of a subscribed topic exactly once.

    ``streams`` (consumer → partition → stream; stream 0 is omitted) is set by assignors that also choose streams.
    """

    members: Mapping[str, PartitionSet]
    streams: Mapping[str, Streams] = field(default_factory=dict)


@runtime_checkable
class Assignor(Protocol):
    """Computes targets. An assignor is named after its entry point in ``kafka_coord.assignors``. Its constructor takes
    no arguments.

    An assignor that fills ``Target.streams`` has an attribute ``decides_streams = True``. For other assignors, the
    coordinator spreads the partitions that a consumer has of a topic over the consumer's streams at the start.
    """

    def assign(self, inputs: AssignmentInputs) -> Target:
        """Returns the same target for the same inputs, whatever the order of their mappings."""
        ...
