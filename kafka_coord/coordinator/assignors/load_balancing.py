"""Balances the load of members with different subscriptions by moving partitions, one at a time, to the least loaded
members."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from kafka_coord.coordinator.assignors.base import AssignmentInputs
from kafka_coord.coordinator.assignors.kept_partitions import Numbers, Share

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
