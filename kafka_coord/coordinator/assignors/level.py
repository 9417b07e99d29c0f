"""Members subscribe differently: move single partitions from the most to the least loaded until no move helps."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from kafka_coord.coordinator.assignors.base import AssignmentInputs
from kafka_coord.coordinator.assignors.shares import Numbers, Share


def level(
    shares: list[Share], topics: list[str], weights: dict[str, int], pool: Numbers, inputs: AssignmentInputs
) -> None:
    """Hands out ``pool``, then moves partitions while one move makes the more loaded of two members better off.

    Load is partitions per weight. The end is what Kafka's sticky assignor calls balanced: no partition could go to
    another subscriber that would still be less loaded afterwards than its owner is now. Each move lowers the sum of
    squares, so it ends; the most loaded member gives first, so that hardly any partition moves twice.
    """
    takers = Takers(shares, topics, weights, inputs)
    for topic in sorted(topics, key=lambda name: (takers.width(name), name)):
        _hand_out(topic, takers, pool, inputs)
    while _round(shares, takers, weights, inputs):
        takers = Takers(shares, topics, weights, inputs)


class Takers:
    """For each topic the subscriber that would be least loaded after taking one more.

    Topics with the same subscribers share one heap. Heaps are lazy: an entry is corrected when it comes to the top,
    which finds every member whose load grew; one whose load fell may be overlooked until the heaps are built anew.
    """

    def __init__(
        self, shares: list[Share], topics: list[str], weights: dict[str, int], inputs: AssignmentInputs
    ) -> None:
        self._shares = {share.consumer: share for share in shares}
        self._weights = weights
        subscribers: dict[str, list[int]] = {topic: [] for topic in topics}
        classes: dict[tuple[str, ...], list[Share]] = {}
        for share in shares:
            classes.setdefault(inputs.subscriptions[share.consumer], []).append(share)
        for number, subscribed in enumerate(classes):
            for topic in subscribed:
                subscribers[topic].append(number)
        members = list(classes.values())
        self._of_topic: dict[str, tuple[int, ...]] = {topic: tuple(found) for topic, found in subscribers.items()}
        self._members = {
            key: [share for number in key for share in members[number]] for key in set(self._of_topic.values())
        }
        self._heaps: dict[tuple[tuple[int, ...], str | None], list[tuple[float, str]]] = {}

    def group(self, topic: str) -> tuple[int, ...]:
        """What topics with the same subscribers have in common."""
        return self._of_topic[topic]

    def width(self, topic: str) -> int:
        """How many subscribe to ``topic``."""
        return len(self._members[self._of_topic[topic]])

    def best(self, topic: str, rack: str | None = None) -> tuple[float, Share] | None:
        """(load after taking one more, who); only members in ``rack`` where one is given."""
        key = self._of_topic[topic]
        heap = self._heaps.get((key, rack))
        if heap is None:
            heap = [(self._next_load(s), s.consumer) for s in self._members[key] if rack is None or s.rack == rack]
            heapify(heap)
            self._heaps[key, rack] = heap
        while heap:
            load, consumer = heap[0]
            share = self._shares[consumer]
            actual = self._next_load(share)
            if actual == load:
                return load, share
            heapreplace(heap, (actual, consumer))
        return None

    def _next_load(self, share: Share) -> float:
        return (share.count + 1) / self._weights[share.consumer]


def _hand_out(topic: str, takers: Takers, pool: Numbers, inputs: AssignmentInputs) -> None:
    """Gives each partition in the pool to the least loaded subscriber, one in its rack where that costs no balance."""
    racks = inputs.topics[topic].replica_racks
    counts: dict[str, tuple[Share, int]] = {}
    plain = []
    for number in sorted(pool[topic]):
        found = takers.best(topic)
        if found is None:
            return
        load, share = found
        near = [takers.best(topic, rack) for rack in sorted(racks.get(number, ()))]
        close = [other for other in near if other is not None and other[0] <= load]
        if close:
            close[0][1].take(topic, (number,))
        else:
            # only counted here, so that each gets one run of numbers below
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
    """Lets every member give while that helps, the most loaded first; returns whether anything moved."""
    by_name = {share.consumer: share for share in shares}
    donors = [(-share.count / weights[share.consumer], share.consumer) for share in shares if share.count]
    heapify(donors)
    moved = False
    while donors:
        load, consumer = donors[0]
        giver = by_name[consumer]
        found = _best_gift(giver, -load, takers)
        if found is None:
            heappop(donors)
            continue
        topic, taker = found
        number = _least_wanted(giver, topic, inputs)
        giver.drop(topic, number)
        taker.take(topic, (number,))
        moved = True
        heappop(donors)
        heappush(donors, (-giver.count / weights[consumer], consumer))
    return moved


def _best_gift(giver: Share, load: float, takers: Takers) -> tuple[str, Share] | None:
    best: tuple[float, int, str] | None = None
    found: tuple[str, Share] | None = None
    loads: dict[tuple[int, ...], tuple[float, Share] | None] = {}
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
            best, found = rank, (topic, taker[1])
    return found


def _least_wanted(giver: Share, topic: str, inputs: AssignmentInputs) -> int:
    """The highest number, of those without a replica in the giver's rack if there are any."""
    racks = inputs.topics[topic].replica_racks
    numbers = giver.numbers[topic]
    if racks and giver.rack is not None:
        far = [number for number in numbers if racks.get(number) and giver.rack not in racks[number]]
        return max(far or numbers)
    return max(numbers)
