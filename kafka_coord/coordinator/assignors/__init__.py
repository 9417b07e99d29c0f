"""Assignors decide which member should own which partition. They are pure functions from members, topics and current
owners to a target. This module has the built-in ones, and finds the plug-ins that installed packages provide as entry
points.

``sticky``, the default, and ``weighted`` put balance first, then few moves, then nearby replicas. ``range`` and
``roundrobin`` go by the order of members and partitions, and ignore current owners.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from importlib.metadata import entry_points

from kafka_coord.coordinator.assignors.base import AssignmentInputs, Assignor, Target
from kafka_coord.coordinator.assignors.kept_partitions import (
    Numbers,
    Share,
    components,
    fill_quotas,
    kept_shares,
    proportional_quotas,
)
from kafka_coord.model import PartitionSet, TopicPartition

__all__ = ["AssignmentInputs", "Assignor", "Target", "built_in_assignors", "load_assignors"]

ENTRY_POINTS = "kafka_coord.assignors"

_log = logging.getLogger(__name__)


def built_in_assignors() -> dict[str, Assignor]:
    """Returns the assignors that are always available."""
    return {
        "range": RangeAssignor(),
        "roundrobin": RoundRobinAssignor(),
        "sticky": StickyAssignor(),
        "weighted": WeightedAssignor(),
    }


def load_assignors() -> dict[str, Assignor]:
    """Returns the assignors by name. Logs and skips plug-ins that cannot be loaded. A plug-in cannot replace a built-in
    assignor."""
    assignors = built_in_assignors()
    for entry_point in entry_points(group=ENTRY_POINTS):
        if entry_point.name in assignors:
            if entry_point.module.partition(".")[0] != __name__.partition(".")[0]:
                _log.warning("ignored assignor name=%s from=%s: the name is taken", entry_point.name, entry_point.value)
            continue
        try:
            assignor = entry_point.load()()
        except Exception as error:  # noqa: BLE001  a plug-in may fail in any way; the others must still load
            _log.warning("skipped assignor name=%s from=%s: %r", entry_point.name, entry_point.value, error)
            continue
        if not isinstance(assignor, Assignor):
            _log.warning("skipped assignor name=%s from=%s: it has no assign()", entry_point.name, entry_point.value)
            continue
        assignors[entry_point.name] = assignor
    return assignors


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


_FEW_CLASSES = 32
"""Up to this many distinct subscriptions, comparing the best member of each is cheaper than building one heap for each
set of subscribers."""


def balance_loads(
    shares: list[Share], topics: list[str], weights: dict[str, int], pool: Numbers, inputs: AssignmentInputs
) -> None:
    """Distributes ``pool``, then moves partitions as long as a move improves the balance between two members.

    A member's load is its number of partitions divided by its weight. The result is balanced in the sense of Kafka's
    sticky assignor: no partition could move to a subscriber that would then be less loaded than the current owner is
    now. Each move lowers the sum of the squared loads, so the loop terminates. The most loaded member gives up
    partitions first, so hardly any partition moves twice.
    """
    takers = Takers(shares, topics, weights, inputs)
    for topic in sorted(topics, key=lambda name: (takers.width(name), name)):
        _hand_out(topic, takers, pool, inputs)
    while _round(shares, takers, weights, inputs):
        takers = Takers(shares, topics, weights, inputs)


class Takers:
    """Finds, for each topic, the subscriber that would be least loaded after taking one more partition.

    Topics with the same subscribers share their heaps: one per distinct subscription if there are only a few, otherwise
    a single heap with all subscribers. An entry is corrected only when it reaches the top of its heap, so a member
    whose load has fallen may be overlooked until the heaps are rebuilt.
    """

    def __init__(
        self, shares: list[Share], topics: list[str], weights: dict[str, int], inputs: AssignmentInputs
    ) -> None:
        by_name = {share.consumer: share for share in shares}
        subscribers: dict[str, list[int]] = {topic: [] for topic in topics}
        members: list[list[Share]] = []
        for subscribed, consumers in inputs.by_subscription():
            if subscribed and consumers[0] in by_name:
                for topic in subscribed:
                    subscribers[topic].append(len(members))
                members.append([by_name[consumer] for consumer in consumers])
        groups: dict[tuple[int, ...], int] = {}
        self._group_of: dict[str, int] = {}
        for topic, classes in subscribers.items():
            self._group_of[topic] = groups.setdefault(tuple(classes), len(groups))
        self._width = [sum(len(members[number]) for number in key) for key in groups]
        self._heaps_of: list[list[_Heap]]
        if len(members) <= _FEW_CLASSES:
            heaps = [_Heap(found, weights) for found in members]
            self._heaps_of = [[heaps[number] for number in key] for key in groups]
        else:
            everyone = [[share for number in key for share in members[number]] for key in groups]
            self._heaps_of = [[_Heap(found, weights)] for found in everyone]

    def group(self, topic: str) -> int:
        """Returns a key that is the same for all topics with the same subscribers."""
        return self._group_of[topic]

    def width(self, topic: str) -> int:
        return self._width[self._group_of[topic]]

    def best(self, topic: str, rack: str | None = None) -> tuple[float, Share] | None:
        """Returns the least loaded subscriber of ``topic``, and what its load would be with one more partition. If
        ``rack`` is given, considers only members in that rack."""
        best: tuple[float, str, Share] | None = None
        for heap in self._heaps_of[self._group_of[topic]]:
            candidate = heap.best(rack)
            if candidate is not None and (best is None or candidate < best):
                best = candidate
        return None if best is None else (best[0], best[2])


class _Heap:
    """Finds the least loaded member, overall or in one rack."""

    __slots__ = ("_by_rack", "_members", "_weights")

    def __init__(self, members: list[Share], weights: dict[str, int]) -> None:
        self._members = members
        self._weights = weights
        self._by_rack: dict[str | None, list[tuple[float, str, Share]]] = {}

    def best(self, rack: str | None) -> tuple[float, str, Share] | None:
        heap = self._by_rack.get(rack)
        if heap is None:
            heap = [
                ((share.count + 1) / self._weights[share.consumer], share.consumer, share)
                for share in self._members
                if rack is None or share.rack == rack
            ]
            heapify(heap)
            self._by_rack[rack] = heap
        while heap:
            entry = heap[0]
            load, consumer, share = entry
            actual = (share.count + 1) / self._weights[consumer]
            if actual == load:
                return entry
            heapreplace(heap, (actual, consumer, share))
        return None


def _hand_out(topic: str, takers: Takers, pool: Numbers, inputs: AssignmentInputs) -> None:
    """Gives each of the topic's partitions in the pool to the least loaded subscriber. In a tie, a subscriber in the
    same rack as a replica wins."""
    racks = inputs.topics[topic].replica_racks
    counts: dict[str, tuple[Share, int]] = {}
    plain = []
    for number in sorted(pool[topic]):
        taker = takers.best(topic)
        if taker is None:
            return
        load, share = taker
        near = [takers.best(topic, rack) for rack in sorted(racks.get(number, ()))]
        close = [other for other in near if other is not None and other[0] <= load]
        if close:
            close[0][1].take(topic, (number,))
        else:
            # this loop only counts; the loop below then gives each member one run of numbers
            share.count += 1
            counts[share.consumer] = (share, counts.get(share.consumer, (share, 0))[1] + 1)
            plain.append(number)
    first = 0
    for _, (share, count) in sorted(counts.items()):
        share.count -= count
        share.take(topic, plain[first : first + count])
        first += count
    pool[topic].clear()


def _round(shares: list[Share], takers: Takers, weights: dict[str, int], inputs: AssignmentInputs) -> bool:
    """Moves partitions away from the most loaded members while that improves the balance. Returns whether any moved."""
    by_name = {share.consumer: share for share in shares}
    donors = [(-share.count / weights[share.consumer], share.consumer) for share in shares if share.count]
    heapify(donors)
    moved = False
    while donors:
        load, consumer = donors[0]
        giver = by_name[consumer]
        gift = _best_gift(giver, -load, takers)
        if gift is None:
            heappop(donors)
            continue
        topic, taker = gift
        number = _least_wanted(giver, topic, inputs)
        giver.drop(topic, number)
        taker.take(topic, (number,))
        moved = True
        heappop(donors)
        heappush(donors, (-giver.count / weights[consumer], consumer))
    return moved


def _best_gift(giver: Share, load: float, takers: Takers) -> tuple[str, Share] | None:
    best: tuple[float, int, str] | None = None
    gift: tuple[str, Share] | None = None
    loads: dict[int, tuple[float, Share] | None] = {}
    for topic, numbers in giver.numbers.items():
        if not numbers:
            continue
        group = takers.group(topic)
        if group not in loads:
            loads[group] = takers.best(topic)
        taker = loads[group]
        if taker is None or taker[0] >= load:
            continue
        rank = (taker[0], -len(numbers), topic)
        if best is None or rank < best:
            best, gift = rank, (topic, taker[1])
    return gift


def _least_wanted(giver: Share, topic: str, inputs: AssignmentInputs) -> int:
    """Returns the partition to give up: the highest-numbered one without a replica in the giver's rack, or else the
    highest-numbered one overall."""
    racks = inputs.topics[topic].replica_racks
    numbers = giver.numbers[topic]
    if racks and giver.rack is not None:
        far = [number for number in numbers if racks.get(number) and giver.rack not in racks[number]]
        return max(far or numbers)
    return max(numbers)
