"""Plans one group, and reads the committed offsets of the partitions that the plan starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kafka_coord.coordinator.assignors import Assignor
from kafka_coord.coordinator.plan import plan
from kafka_coord.coordinator.start_offsets import StartOffsets, read_offsets_zxid, read_start_offsets
from kafka_coord.coordinator.steps import AnswerRequest, Plan, RemoveGroup
from kafka_coord.model import Observation
from kafka_coord.zk.store import Store


@dataclass(frozen=True, slots=True)
class Decided:
    """A plan, the observation it is based on, and the start offset of each partition that it starts.

    ``observation.unreadable`` also lists the offset znodes that keep a partition from being started.
    """

    plan: Plan
    observation: Observation
    start: StartOffsets = field(default_factory=StartOffsets)


def decide(store: Store, observation: Observation, assignors: Mapping[str, Assignor]) -> Decided:
    """Plans, reads the offsets of the partitions that the plan starts, and replans without any partitions whose offset
    is unreadable.

    A plan is valid only as a whole: one step may release partitions that the next one starts. So this function
    replans instead of dropping steps. Each round finds at least one more unreadable znode and leaves its partitions out
    of the next plan, so the loop terminates.

    No one holds the partitions that a plan starts, so no one commits their offsets after they are read here. If a group
    has no members, only this coordinator changes its offsets.
    """
    while True:
        decided = plan(observation, assignors)
        if observation.offsets_zxid is None and _removes_unless_changed(decided):
            observation = replace(observation, offsets_zxid=read_offsets_zxid(store, observation.group))
            continue
        started = decided.started
        if not started:
            return Decided(decided, observation)
        start = read_start_offsets(store, observation.group, started, observation.topics, observation.members)
        if not start.unreadable:
            return Decided(decided, observation, start)
        found = dict.fromkeys(start.unreadable.values())
        observation = replace(observation, unreadable=(*observation.unreadable, *found))


def _removes_unless_changed(decided: Plan) -> bool:
    return any(isinstance(step, AnswerRequest) and step.request.unchanged_since for step in decided.steps) and any(
        isinstance(step, RemoveGroup) for step in decided.steps
    )
