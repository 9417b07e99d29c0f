"""One decision about one group, with the committed offsets its starts begin at read before it is final."""

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
    """A plan, the observation it follows from, and where each partition it starts begins.

    ``observation.unreadable`` also has the offset znodes that keep a partition from being started.
    """

    plan: Plan
    observation: Observation
    start: StartOffsets = field(default_factory=StartOffsets)


def decide(store: Store, observation: Observation, assignors: Mapping[str, Assignor]) -> Decided:
    """Plans, reads the offsets of what the plan starts, and plans again while some of them are unreadable.

    A plan is admissible only as a whole, because a release in one step makes a start in the next one possible. So
    nothing is ever cut from a plan. Each turn adds at least one unreadable znode, and the partitions of that znode are
    not started again, so the loop ends. A group without an unreadable offset takes one turn.

    Nobody holds what a plan starts, so these offsets do not change: a commit needs the registration, and the release
    was seen before this read.
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
