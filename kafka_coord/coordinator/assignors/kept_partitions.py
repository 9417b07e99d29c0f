"""The working data of ``sticky`` and ``weighted``: the partitions that each member keeps, the parts of the group that
have no topics in common, and the quotas of members with equal subscriptions.

Each of these members keeps partitions up to its quota and gives up the rest, in nearly linear time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heapreplace

from kafka_coord.coordinator.assignors.base import AssignmentInputs
from kafka_coord.model import PartitionSet

Numbers = dict[str, set[int]]
"""Maps topics to partition numbers."""

Taken = dict[str, tuple[frozenset[int], set[int]]]
"""Maps each topic to its existing partitions and to those that some member already keeps."""
MAX_SPREAD_BYTES = 300_000
"""The size above which a target is packed instead of spread, so that it fits in a 900 kB znode."""
_ENTRY_BYTES = len('"":"123-456",')


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


@dataclass(frozen=True, slots=True)
class Quotas:
    """The number of partitions that each member gets: ``least``, and one more for ``extras`` of the ``flexible``
    members.

    The quotas do not say which flexible members get one more, so that partitions can stay in place or move close to
    their replicas. The sum of ``least``, plus ``extras``, is the number of partitions.
    """

    least: dict[str, int]
    flexible: frozenset[str]
    extras: int


def proportional_quotas(capacities: dict[str, int], partitions: int) -> Quotas:
    """Returns quotas in proportion to capacity, by the largest remainder method. Only members that tie for the last
    extras are flexible."""
    total = sum(capacities.values())
    least, remainder = {}, {}
    for consumer, capacity in capacities.items():
        least[consumer], remainder[consumer] = divmod(partitions * capacity, total)
    extras = partitions - sum(least.values())
    if not extras:
        return Quotas(least, frozenset(), 0)
    cut = sorted(remainder.values(), reverse=True)[extras - 1]
    for consumer, left in remainder.items():
        if left > cut:
            least[consumer] += 1
            extras -= 1
    return Quotas(least, frozenset(c for c, left in remainder.items() if left == cut), extras)


def fill_quotas(
    shares: list[Share], topics: list[str], quotas: Quotas, pool: Numbers, inputs: AssignmentInputs
) -> None:
    """Brings ``shares`` (sorted by consumer) to their quotas with as few moves as possible. Empties ``pool``."""
    extras = _trim(shares, quotas, pool, inputs)
    room = {share.consumer: quotas.least[share.consumer] - share.count for share in shares}
    may_have_more = {
        share.consumer for share in shares if share.consumer in quotas.flexible and room[share.consumer] >= 0
    }
    if any(inputs.topics[topic].replica_racks for topic in topics):
        extras = _near(shares, topics, room, may_have_more, extras, pool, inputs)
    for share in shares:
        if extras and share.consumer in may_have_more:
            room[share.consumer] += 1
            extras -= 1
    _deal(shares, topics, room, pool)


def _trim(shares: list[Share], quotas: Quotas, pool: Numbers, inputs: AssignmentInputs) -> int:
    """Moves partitions that exceed a member's quota to the pool. Returns how many extras are still available."""
    above = [s for s in shares if s.consumer in quotas.flexible and s.count > quotas.least[s.consumer]]
    above.sort(key=lambda share: (quotas.least[share.consumer] - share.count, share.consumer))
    keeps_extra = {share.consumer for share in above[: quotas.extras]}
    for share in shares:
        excess = share.count - quotas.least[share.consumer] - (share.consumer in keeps_extra)
        if excess > 0:
            for topic, number in share.surrender(excess, inputs):
                pool[topic].add(number)
    return quotas.extras - len(keeps_extra)


def _near(
    shares: list[Share],
    topics: list[str],
    room: dict[str, int],
    may_have_more: set[str],
    extras: int,
    pool: Numbers,
    inputs: AssignmentInputs,
) -> int:
    """Gives partitions to members in the same rack as a replica. Returns how many extras are left.

    Partitions with replicas in the fewest racks go first. This greedy order is good, but not always optimal.
    """
    by_rack: dict[str, deque[Share]] = {}
    for share in shares:
        if share.rack is not None:
            by_rack.setdefault(share.rack, deque()).append(share)
    choosy = []
    for topic in topics:
        racks = inputs.topics[topic].replica_racks
        for number in sorted(pool[topic]):
            near = sorted(rack for rack in racks.get(number, ()) if rack in by_rack)
            if near:
                choosy.append((len(near), topic, number, near))
    for _, topic, number, near in sorted(choosy):
        for optional in (False, True):
            taker = _with_room(near, by_rack, room, may_have_more if optional and extras else set())
            if taker is not None:
                break
        else:
            continue
        room[taker.consumer] -= 1
        if room[taker.consumer] < 0:
            extras -= 1
            may_have_more.discard(taker.consumer)
            room[taker.consumer] = 0
        taker.take(topic, (number,))
        pool[topic].remove(number)
    return extras


def _with_room(
    near: list[str], by_rack: dict[str, deque[Share]], room: dict[str, int], may_have_more: set[str]
) -> Share | None:
    for rack in near:
        queue = by_rack[rack]
        for _ in range(len(queue)):
            share = queue[0]
            queue.rotate(-1)
            if room[share.consumer] > 0 or share.consumer in may_have_more:
                return share
    return None


def _deal(shares: list[Share], topics: list[str], room: dict[str, int], pool: Numbers) -> None:
    """Distributes the pool until every member is full. Spreads each topic over all members with room, in runs if
    possible.

    Runs keep the target in ZooKeeper short: "0-49" takes less space than fifty scattered numbers. If a znode could not
    hold the names of all topics for every member, the members are filled one after another, with few topics each.
    """
    waiting = deque(share for share in shares if room[share.consumer] > 0)
    left = sum(room[share.consumer] for share in waiting)
    spread_bytes = sum(min(len(pool[topic]), len(waiting)) * (len(topic) + _ENTRY_BYTES) for topic in topics)
    for topic in topics:
        numbers = sorted(pool[topic])
        pool[topic].clear()
        if spread_bytes > MAX_SPREAD_BYTES:
            _fill(waiting, topic, numbers, room)
        elif len(numbers) >= len(waiting):
            _deal_runs(waiting, topic, numbers, room, left)
            waiting = deque(share for share in waiting if room[share.consumer] > 0)
        else:
            _deal_singly(waiting, topic, numbers, room)
        left -= len(numbers)


def _fill(waiting: deque[Share], topic: str, numbers: list[int], room: dict[str, int]) -> None:
    first = 0
    while first < len(numbers):
        share = waiting[0]
        taken = numbers[first : first + room[share.consumer]]
        share.take(topic, taken)
        first += len(taken)
        room[share.consumer] -= len(taken)
        if not room[share.consumer]:
            waiting.popleft()


def _deal_singly(waiting: deque[Share], topic: str, numbers: list[int], room: dict[str, int]) -> None:
    for number in numbers:
        share = waiting.popleft()
        share.take(topic, (number,))
        room[share.consumer] -= 1
        if room[share.consumer] > 0:
            waiting.append(share)


def _deal_runs(waiting: deque[Share], topic: str, numbers: list[int], room: dict[str, int], left: int) -> None:
    """Gives each member one run, sized in proportion to its room and rounded so that no member gets more than it has
    room for."""
    before = first = 0
    for share in waiting:
        before += room[share.consumer]
        last = before * len(numbers) // left
        if last > first:
            share.take(topic, numbers[first:last])
            room[share.consumer] -= last - first
        first = last
