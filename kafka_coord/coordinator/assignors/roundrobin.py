"""``roundrobin`` deals all partitions of all topics, in order, to the members in turn."""

from __future__ import annotations

from bisect import bisect_left

from kafka_coord.coordinator.assignors.base import AssignmentInputs, Target
from kafka_coord.model import PartitionSet


class RoundRobinAssignor:
    """Deals partitions, sorted by topic and number, to the members that subscribe to the topic, sorted by name.

    Later Kafka clients do the same. Kafka 0.8.2 sorted partitions by the hash of their name, and rejected groups whose
    members had different subscriptions. This assignor ignores current owners.
    """

    def assign(self, inputs: AssignmentInputs) -> Target:
        names = sorted(inputs.members)
        dealt: dict[str, dict[str, list[int]]] = {consumer: {} for consumer in names}
        turn = 0
        for topic, takers in _takers(inputs, names):
            at = bisect_left(takers, turn)
            for number in sorted(inputs.topics[topic].partitions):
                taker = takers[at % len(takers)]
                dealt[names[taker]].setdefault(topic, []).append(number)
                turn = (taker + 1) % len(names)
                at += 1
        return Target({consumer: PartitionSet(found) for consumer, found in dealt.items()})


def _takers(inputs: AssignmentInputs, names: list[str]) -> list[tuple[str, list[int]]]:
    """Returns the topics, sorted by name, each with the sorted positions of its subscribers in ``names``."""
    position = {consumer: at for at, consumer in enumerate(names)}
    subscribers: dict[str, tuple[int, ...]] = {}
    classes = inputs.by_subscription()
    for number, (topics, _) in enumerate(classes):
        for topic in topics:
            subscribers[topic] = (*subscribers.get(topic, ()), number)
    positions: dict[tuple[int, ...], list[int]] = {}
    for numbers in subscribers.values():
        if numbers not in positions:
            positions[numbers] = sorted(position[consumer] for n in numbers for consumer in classes[n][1])
    return [(topic, positions[subscribers[topic]]) for topic in sorted(subscribers)]
