"""Computes and fills quotas for members with equal subscriptions. Each member keeps partitions up to its quota and
gives up the rest. Runs in nearly linear time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from kafka_coord.coordinator.assignors.base import AssignmentInputs
from kafka_coord.coordinator.assignors.kept_partitions import Numbers, Share

MAX_SPREAD_BYTES = 300_000
"""The size above which a target is packed instead of spread, so that it fits in a 900 kB znode."""

_ENTRY_BYTES = len('"":"123-456",')


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
