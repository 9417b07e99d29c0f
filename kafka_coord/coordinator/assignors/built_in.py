"""The built-in assignors. ``sticky``, the default, and ``weighted`` put balance first, then few moves, then nearby
replicas. ``range`` and ``roundrobin`` go by the order of members and partitions, and ignore current owners."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from kafka_coord.coordinator.assignors.base import AssignmentInputs, Target
from kafka_coord.coordinator.assignors.kept_partitions import components, fill_quotas, kept_shares, proportional_quotas
from kafka_coord.coordinator.assignors.load_balancing import balance_loads
from kafka_coord.model import PartitionSet, TopicPartition


class StickyAssignor:
    """Gives members with the same subscription equal numbers of partitions, to within one, with only the necessary
    moves.

    If subscriptions differ, the result is balanced in the sense of Kafka's sticky assignor: no single move would
    improve it.
    """

    def assign(self, inputs: AssignmentInputs) -> Target:
        return assign_by_capacity(inputs, dict.fromkeys(inputs.members, 1))


def assign_by_capacity(inputs: AssignmentInputs, capacities: Mapping[str, int]) -> Target:
    """Returns a sticky target in which each member's share is in proportion to its capacity."""
    shares, pool = kept_shares(inputs)
    for members, topics in components(inputs):
        part = [shares[consumer] for consumer in members]
        weights = {consumer: capacities[consumer] for consumer in members}
        if all(len(inputs.subscriptions[consumer]) == len(topics) for consumer in members):
            partitions = sum(len(inputs.topics[topic].partitions) for topic in topics)
            fill_quotas(part, topics, proportional_quotas(weights, partitions), pool, inputs)
        else:
            balance_loads(part, topics, weights, pool, inputs)
    return Target({consumer: share.as_set() for consumer, share in shares.items()})


class WeightedAssignor:
    """Gives a member with capacity 3 three times as many partitions as a member with capacity 1, as nearly as whole
    partitions allow.

    Members with the same subscription get their shares by the largest remainder method. If subscriptions differ,
    partitions move until no single move would improve the balance.
    """

    def assign(self, inputs: AssignmentInputs) -> Target:
        return assign_by_capacity(inputs, {name: member.capacity for name, member in inputs.members.items()})


Thread = tuple[str, str, int]
"""The thread id, the consumer, and the thread's number."""


class RangeAssignor:
    """Assigns each topic's partitions, in numeric order, to threads sorted by the string ``<consumer>-<thread>``.
    The result is that of Kafka 0.8.2's ``kafka.consumer.RangeAssignor``, including streams.

    Each of T threads gets P / T consecutive partitions, and the first P % T threads get one more. As in 0.8, "c-10"
    comes before "c-2", and the threads of "c-0" come between those of "c". This assignor ignores current owners.
    """

    decides_streams = True

    def assign(self, inputs: AssignmentInputs) -> Target:
        members: dict[str, dict[str, list[int]]] = {consumer: {} for consumer in inputs.members}
        streams: dict[str, dict[TopicPartition, int]] = {}
        for topic, threads in _threads(inputs).items():
            partitions = sorted(inputs.topics[topic].partitions)
            each, extra = divmod(len(partitions), len(threads))
            # if there are more threads than partitions, the last threads get none
            for position, (_, consumer, thread) in enumerate(threads[: len(partitions)]):
                first = each * position + min(position, extra)
                numbers = partitions[first : first + each + (position < extra)]
                members[consumer].setdefault(topic, []).extend(numbers)
                if thread:
                    streams.setdefault(consumer, {}).update({TopicPartition(topic, n): thread for n in numbers})
        return Target({consumer: PartitionSet(found) for consumer, found in members.items()}, streams)


def _threads(inputs: AssignmentInputs) -> dict[str, list[Thread]]:
    """Returns each topic's threads in 0.8's order. Topics with the same subscribers and stream counts share one sorted
    list."""
    counts: dict[str, dict[str, int]] = {}
    for topics, consumers in inputs.by_subscription():
        for consumer in consumers:
            for topic in topics:
                counts.setdefault(topic, {})[consumer] = inputs.streams_of(consumer, topic)
    ordered: dict[tuple[tuple[str, int], ...], list[Thread]] = {}
    threads: dict[str, list[Thread]] = {}
    for topic, streams in counts.items():
        key = tuple(streams.items())
        if key not in ordered:
            ordered[key] = sorted(thread for consumer, count in key for thread in _of(consumer, count))
        threads[topic] = ordered[key]
    return threads


def _of(consumer: str, count: int) -> Iterator[Thread]:
    return ((f"{consumer}-{thread}", consumer, thread) for thread in range(count))


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
