"""The working data of ``sticky`` and ``weighted``: the partitions that each member keeps, and the parts of the group
that have no topics in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heapreplace

from kafka_coord.coordinator.assignors.base import AssignmentInputs
from kafka_coord.model import PartitionSet

Numbers = dict[str, set[int]]
"""Maps topics to partition numbers."""

Taken = dict[str, tuple[frozenset[int], set[int]]]
"""Maps each topic to its existing partitions and to those that some member already keeps."""


class Share:
    """The partitions of one member while its target is being computed.

    In a large group, most partitions stay where they are, so nothing is copied before it changes: a topic keeps its
    original frozen set until a partition is taken or dropped, and an unchanged share returns the member's original set.
    """

    __slots__ = ("_kept", "consumer", "count", "numbers", "rack")

    def __init__(self, consumer: str, rack: str | None) -> None:
        self.consumer = consumer
        self.rack = rack
        self.numbers: dict[str, frozenset[int] | set[int]] = {}
        self.count = 0
        self._kept: PartitionSet | None = None

    def keep(self, partitions: PartitionSet, subscribed: frozenset[str], topics: Taken) -> None:
        """Keeps the member's existing partitions of subscribed topics, unless another member keeps them."""
        whole = True
        for topic, numbers in partitions.unordered():
            if topic not in subscribed:
                whole = False
                continue
            existing, taken = topics[topic]
            if not (numbers <= existing and numbers.isdisjoint(taken)):
                whole = False
                numbers = (numbers & existing) - taken  # noqa: PLW2901
            if numbers:
                taken |= numbers
                self.numbers[topic] = numbers
                self.count += len(numbers)
        self._kept = partitions if whole else None

    def take(self, topic: str, numbers: Iterable[int]) -> None:
        """Adds partitions that no other member has."""
        mine = self._own(topic)
        before = len(mine)
        mine.update(numbers)
        self.count += len(mine) - before

    def drop(self, topic: str, number: int) -> None:
        self._own(topic).remove(number)
        self.count -= 1

    def as_set(self) -> PartitionSet:
        return self._kept if self._kept is not None else PartitionSet(self.numbers)

    def _own(self, topic: str) -> set[int]:
        """Returns the partition numbers of a topic as a set that only this share uses and may change."""
        self._kept = None
        mine = self.numbers.get(topic)
        if not isinstance(mine, set):
            mine = self.numbers[topic] = set(mine or ())
        return mine

    def surrender(self, excess: int, inputs: AssignmentInputs) -> Iterator[tuple[str, int]]:
        """Gives up and yields ``excess`` partitions: first partitions without a replica in the member's rack, and then
        partitions of its largest topic.

        Taking partitions from the largest topic keeps each topic spread out, and taking the highest numbers leaves the
        remaining ones contiguous.
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
        far = []
        for topic in sorted(self.numbers):
            racks = inputs.topics[topic].replica_racks
            far += [
                (topic, number)
                for number in sorted(self.numbers[topic])
                if racks.get(number) and self.rack not in racks[number]
            ]
        return far


def kept_shares(inputs: AssignmentInputs) -> tuple[dict[str, Share], Numbers]:
    """Returns the partitions that each member may keep, and the partitions that no member keeps."""
    shares: dict[str, Share] = {}
    topics: Taken = {name: (topic.partitions, set()) for name, topic in inputs.topics.items()}
    wanted: set[str] = set()
    subscribed: dict[str, frozenset[str]] = {}
    for chosen, consumers in inputs.by_subscription():
        wanted.update(chosen)
        subscribed.update(dict.fromkeys(consumers, frozenset(chosen)))
    for consumer in sorted(inputs.members):
        share = shares[consumer] = Share(consumer, inputs.members[consumer].rack)
        share.keep(inputs.current_of(consumer), subscribed[consumer], topics)
    return shares, {topic: set(topics[topic][0] - topics[topic][1]) for topic in sorted(wanted)}


def components(inputs: AssignmentInputs) -> list[tuple[list[str], list[str]]]:
    """Splits the group into parts that do not share any topics. Returns the sorted members and topics of each part."""
    members_of = inputs.by_subscription()
    parent: dict[str, str] = {}

    def root(topic: str) -> str:
        while parent.setdefault(topic, topic) != topic:
            parent[topic] = parent[parent[topic]]
            topic = parent[topic]
        return topic

    for topics, _ in members_of:
        for topic in topics[1:]:
            parent[root(topic)] = root(topics[0])
    parts: dict[str, tuple[list[str], set[str]]] = {}
    for topics, members in members_of:
        if topics:
            part = parts.setdefault(root(topics[0]), ([], set()))
            part[0].extend(members)
            part[1].update(topics)
    return sorted((sorted(members), sorted(topics)) for members, topics in parts.values())
