"""Computes the cost of an event from the members' journals. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kafka_coord.dev.bench.rebalance.journal import Line, What
from kafka_coord.dev.bench.report import Spread
from kafka_coord.model import TopicPartition

_MS = 1_000_000


class Event(StrEnum):
    """The events that the benchmark causes. All but ``COLD`` happen in a settled group."""

    COLD = "cold start"
    """All members join at once."""
    JOIN = "join"
    STUCK = "join beside a stuck group"
    """A join, while a member of another group is alive but ignores its commands."""
    LEAVE = "leave"
    REBALANCE = "operator rebalance"
    GROW = "partitions +10 %"
    KILL = "member killed"


Owners = Mapping[TopicPartition, str]
"""The owner of each partition, as of the last line of the journals."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one event. ``settle_ms`` is the time until the last command is acknowledged or, if later, the request
    is answered. ``gaps_ms`` lists how long each interrupted or new partition had no owner.

    The other fields count partitions: those that changed owner (``moved``), had no owner before (``new``), stopped and
    restarted with the same owner (``interrupted_not_moved``), or have no owner at the end (``left``).
    """

    event: Event
    settle_ms: float
    gaps_ms: tuple[float, ...]
    moved: int
    new: int
    interrupted_not_moved: int
    left: int

    @property
    def partition_seconds(self) -> float:
        """How long partitions had no owner, summed over all partitions. For new partitions, this counts from the
        event."""
        return sum(self.gaps_ms) / 1000


def cost(
    event: Event, at_ns: int, lines: Iterable[Line], before: Owners, *, killed: str = "", answered_ns: int = 0
) -> tuple[Cost, Owners]:
    """Returns the cost of an event at ``at_ns``, and the owners after it. Partitions of a ``killed`` member have no
    owner after ``at_ns``. If the event is a request, ``answered_ns`` is the time of its answer.
    """
    stopped = {tp: at_ns for tp, owner in before.items() if owner == killed}
    owners = {tp: owner for tp, owner in before.items() if owner != killed}
    last, gaps = max(at_ns, answered_ns), []
    interrupted: set[TopicPartition] = set(stopped)
    for line in lines:
        if line.what is What.ACKNOWLEDGED:
            last = max(last, line.at_ns)
        elif line.what is What.STOPPED:
            for partition in line.partitions:
                if owners.get(partition) == line.consumer:
                    del owners[partition]
                    stopped[partition] = line.at_ns
                    interrupted.add(partition)
        elif line.what is What.STARTED:
            for partition in line.partitions:
                owners[partition] = line.consumer
                since = stopped.pop(partition, at_ns if partition not in before else line.at_ns)
                gaps.append((line.at_ns - since) / _MS)
    moved = sum(1 for tp, owner in owners.items() if tp in before and before[tp] != owner)
    found = Cost(
        event=event,
        settle_ms=(last - at_ns) / _MS,
        gaps_ms=tuple(gaps),
        moved=moved,
        new=len(owners.keys() - before.keys()),
        interrupted_not_moved=sum(1 for tp in interrupted if tp in owners and owners[tp] == before.get(tp)),
        left=len(stopped),
    )
    return found, owners


def balanced(owners: Owners, members: int, partitions: int) -> bool:
    """Returns whether ``members`` members fetch all partitions, as evenly as possible."""
    counts = Counter(owners.values())
    if not members:
        return not counts
    least, rest = divmod(partitions, members)
    idle = max(0, members - partitions)
    return (
        sum(counts.values()) == partitions
        and len(counts) == members - idle
        and max(counts.values()) <= least + (rest > 0)
        and min(counts.values()) >= (least or 1)
    )


def summary(costs: Sequence[Cost]) -> dict[str, Any]:
    """Returns statistics over the repetitions of one event."""
    settle = Spread.of([one.settle_ms for one in costs])
    gaps = Spread.of([gap for one in costs for gap in one.gaps_ms])
    longest = Spread.of([max(one.gaps_ms, default=0.0) for one in costs])
    seconds = Spread.of([one.partition_seconds for one in costs])
    return {
        "n": len(costs),
        "settle_ms": quantiles(settle),
        "gap_ms": quantiles(gaps),
        "longest_gap_ms": quantiles(longest),
        "partition_seconds": round(seconds.median, 3) if seconds else None,
        "moved": round(sum(one.moved for one in costs) / len(costs), 1) if costs else None,
        "new": round(sum(one.new for one in costs) / len(costs), 1) if costs else None,
        "interrupted_not_moved": sum(one.interrupted_not_moved for one in costs),
        "without_owner": sum(one.left for one in costs),
    }


def quantiles(spread: Spread | None) -> dict[str, float] | None:
    """Returns ``p50``, ``p99`` and ``max``, or None if there are no values."""
    if spread is None:
        return None
    return {"p50": round(spread.median, 1), "p99": round(spread.p99, 1), "max": round(spread.most, 1)}
