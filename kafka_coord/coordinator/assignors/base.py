"""What an assignor is given and what it answers. An assignor is pure: no I/O, no clock, no randomness, no state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from kafka_coord.model import NO_PARTITIONS, Member, PartitionSet, Streams, TopicInfo


@dataclass(frozen=True, slots=True)
class AssignmentInputs:
    """Everything an assignor may know.

    ``members`` is sorted by consumer name. ``topics`` holds every topic somebody subscribes to and Kafka has;
    ``subscriptions`` (consumer → its topics, sorted) is resolved already: patterns are matched, missing topics left
    out. ``current`` is who has each partition now, disjoint between consumers; consumers without any may be missing.
    """

    members: Mapping[str, Member]
    topics: Mapping[str, TopicInfo]
    subscriptions: Mapping[str, tuple[str, ...]]
    current: Mapping[str, PartitionSet] = field(default_factory=dict)

    def streams_of(self, consumer: str, topic: str) -> int:
        """In how many streams a consumer runs a topic that it subscribes to; never matches a pattern again."""
        subscription = self.members[consumer].subscription
        return subscription.streams if subscription.is_wildcard else subscription.topics.get(topic, 1)

    def by_subscription(self) -> list[tuple[tuple[str, ...], list[str]]]:
        """(topics, consumers) for each distinct subscription, consumers sorted.

        A large group has few: they are told apart by identity first, because hashing thousands of topics for each of
        thousands of members is what would take the time.
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
    """Who should own what: every member is named, every partition of a subscribed topic is in exactly one set.

    ``streams`` (consumer → partition → stream, 0 left out) is for assignors that decide streams too.
    """

    members: Mapping[str, PartitionSet]
    streams: Mapping[str, Streams] = field(default_factory=dict)


@runtime_checkable
class Assignor(Protocol):
    """Computes targets. Named by its entry point in the group ``kafka_coord.assignors``, built without arguments.

    One that fills ``Target.streams`` has an attribute ``decides_streams = True``; for the others each consumer's
    partitions of a topic are spread over its streams when they are started.
    """

    def assign(self, inputs: AssignmentInputs) -> Target:
        """The same answer for the same inputs, whatever the order of their mappings."""
        ...
