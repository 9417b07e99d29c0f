"""What ``sticky`` and ``weighted`` work on: who keeps what, and who depends on whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heapreplace

from kafka_coord.coordinator.assignors.base import AssignmentInputs
from kafka_coord.model import PartitionSet

Numbers = dict[str, set[int]]
"""topic → partition numbers."""


class Share:
    """What one member will own, while it is being worked out."""

    __slots__ = ("consumer", "count", "numbers", "rack")

    def __init__(self, consumer: str, rack: str | None) -> None:
        self.consumer = consumer
        self.rack = rack
        self.numbers: Numbers = {}
        self.count = 0

    def take(self, topic: str, numbers: Iterable[int]) -> None:
        mine = self.numbers.setdefault(topic, set())
        before = len(mine)
        mine.update(numbers)
        self.count += len(mine) - before

    def drop(self, topic: str, number: int) -> None:
        self.numbers[topic].remove(number)
        self.count -= 1

    def surrender(self, excess: int, inputs: AssignmentInputs) -> Iterator[tuple[str, int]]:
        """Gives up ``excess`` partitions: first those with no replica in its rack, then from the topic it has most of.

        Taking from the largest topic keeps each topic spread; taking its highest numbers keeps what stays in one run.
        """
        for topic, number in self._far_away(inputs)[:excess]:
            excess -= 1
            self.drop(topic, number)
            yield topic, number
        if excess <= 0:
            return
        sizes = [(-len(numbers), topic) for topic, numbers in self.numbers.items() if numbers]
        heapify(sizes)
        ordered: dict[str, list[int]] = {}
        for _ in range(excess):
            size, topic = sizes[0]
            heapreplace(sizes, (size + 1, topic))
            if topic not in ordered:
                ordered[topic] = sorted(self.numbers[topic])
            number = ordered[topic].pop()
            self.drop(topic, number)
            yield topic, number

    def _far_away(self, inputs: AssignmentInputs) -> list[tuple[str, int]]:
        if self.rack is None:
            return []
        found = []
        for topic in sorted(self.numbers):
            racks = inputs.topics[topic].replica_racks
            if racks:
                found += [
                    (topic, number)
                    for number in sorted(self.numbers[topic])
                    if racks.get(number) and self.rack not in racks[number]
                ]
        return found


def kept_shares(inputs: AssignmentInputs) -> tuple[dict[str, Share], Numbers]:
    """What each member may keep of what it has, and what is left over (partitions that nobody keeps)."""
    shares: dict[str, Share] = {}
    taken: Numbers = {topic: set() for topic in inputs.topics}
    subscribed = {topics: frozenset(topics) for topics in set(inputs.subscriptions.values())}
    for consumer in sorted(inputs.members):
        share = shares[consumer] = Share(consumer, inputs.members[consumer].rack)
        wanted = subscribed[inputs.subscriptions[consumer]]
        for topic, numbers in inputs.current_of(consumer).by_topic():
            if topic in wanted:
                kept = (numbers & inputs.topics[topic].partitions) - taken[topic]
                if kept:
                    share.take(topic, kept)
                    taken[topic] |= kept
    subscribed_topics = frozenset().union(*subscribed.values())
    pool = {topic: set(inputs.topics[topic].partitions - taken[topic]) for topic in sorted(subscribed_topics)}
    return shares, pool


def components(inputs: AssignmentInputs) -> list[tuple[list[str], list[str]]]:
    """(members, topics) of each part of the group that shares no topic with the rest, both sorted."""
    members_of: dict[tuple[str, ...], list[str]] = {}
    for consumer in sorted(inputs.members):
        members_of.setdefault(inputs.subscriptions[consumer], []).append(consumer)
    parent: dict[str, str] = {}

    def root(topic: str) -> str:
        while parent.setdefault(topic, topic) != topic:
            parent[topic] = parent[parent[topic]]
            topic = parent[topic]
        return topic

    for topics in members_of:
        for topic in topics[1:]:
            parent[root(topic)] = root(topics[0])
    parts: dict[str, tuple[list[str], set[str]]] = {}
    for topics, members in members_of.items():
        if topics:
            part = parts.setdefault(root(topics[0]), ([], set()))
            part[0].extend(members)
            part[1].update(topics)
    return sorted((sorted(members), sorted(topics)) for members, topics in parts.values())


def as_sets(shares: dict[str, Share]) -> dict[str, PartitionSet]:
    return {consumer: PartitionSet(share.numbers) for consumer, share in shares.items()}
