"""One decision about one group. Reads the committed offsets of the partitions it starts before it is final."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kafka_coord.coordinator.assignors import Assignor
from kafka_coord.coordinator.offsets import StartOffsets, read_start_offsets
from kafka_coord.coordinator.plan import plan
from kafka_coord.coordinator.steps import Plan
from kafka_coord.model import Observation
from kafka_coord.zk.store import Store


@dataclass(frozen=True, slots=True)
class Decided:
    """A plan, the observation behind it, and the start offset of each partition that it starts.

    ``observation.unreadable`` also lists the offset znodes that keep a partition from being started.
    """

    plan: Plan
    observation: Observation
    start: StartOffsets = field(default_factory=StartOffsets)


def decide(store: Store, observation: Observation, assignors: Mapping[str, Assignor]) -> Decided:
    """Plans, reads the offsets of the partitions the plan starts, and plans again while any offset is unreadable.

    A plan is admissible only as a whole, because a release in one step makes a start in the next one possible. So
    a plan is never shortened. Each turn adds at least one unreadable znode, and the partitions of that znode are not
    started again, so the loop ends. Without an unreadable offset there is one turn.

    Nobody holds the partitions that a plan starts, so their offsets do not change: a commit needs the registration, and
    the release was seen before this read.
    """
    while True:
        decided = plan(observation, assignors)
        wanted = decided.started
        if not wanted:
            return Decided(decided, observation)
        start = read_start_offsets(store, observation.group, wanted, observation.topics)
        if not start.unreadable:
            return Decided(decided, observation, start)
        found = dict.fromkeys(start.unreadable.values())
        observation = replace(observation, unreadable=(*observation.unreadable, *found))
