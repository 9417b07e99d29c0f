"""Plans one group, and reads the committed offsets of the partitions that the plan starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kafka_coord.coordinator.assignors import Assignor
from kafka_coord.coordinator.kept_offsets import outlives_retention
from kafka_coord.coordinator.plan import plan
from kafka_coord.coordinator.start_offsets import StartOffsets, read_offsets_zxid, read_start_offsets
from kafka_coord.coordinator.steps import AnswerRequest, DeleteOffsets, Plan, RemoveGroup, WriteOffsets
from kafka_coord.model import NO_PARTITIONS, Coverage, Observation
from kafka_coord.zk.store import Store


@dataclass(frozen=True, slots=True)
class Decided:
    """A plan, the observation it is based on, and the start offset of each partition that it starts.

    ``observation.unreadable`` also lists the offset znodes that keep a partition from being started. ``start.parent``
    records what the members subscribe to, even if the plan starts nothing.
    """

    plan: Plan
    observation: Observation
    start: StartOffsets = field(default_factory=StartOffsets)


def decide(
    store: Store, observation: Observation, assignors: Mapping[str, Assignor], covered: Coverage | None = None
) -> Decided:
    """Plans, reads the offsets of the partitions that the plan starts, and replans without any partitions whose offset
    is unreadable.

    A plan is valid only as a whole: one step may release partitions that the next one starts. So this function
    replans instead of dropping steps. Each round finds at least one more unreadable znode and leaves its partitions out
    of the next plan, so the loop terminates.

    ``covered`` is what the group is known to remember of its subscriptions. Anything beyond it is recorded even if the
    plan starts nothing. So a topic that is created while the group is paused, or waits for its first topic, came later
    (ADR 41).

    No one holds the partitions that a plan starts, so no one commits their offsets after they are read here. If a group
    has no members, only this coordinator changes its offsets.
    """
    while True:
        decided = plan(observation, assignors)
        if observation.offsets_zxid is None and _removes_unless_changed(decided):
            observation = replace(observation, offsets_zxid=read_offsets_zxid(store, observation.group))
            continue
        if observation.retention_passed and _removes(decided) and outlives_retention(store, observation.group):
            observation = replace(observation, retention_passed=False)
            continue
        started = decided.started
        if not started:
            return Decided(decided, observation, _covering(store, observation, decided, covered or Coverage()))
        start = read_start_offsets(store, observation.group, started, observation.topics, observation.members)
        if not start.unreadable:
            return Decided(decided, observation, start)
        found = dict.fromkeys(start.unreadable.values())
        observation = replace(observation, unreadable=(*observation.unreadable, *found))


def _covering(store: Store, observation: Observation, decided: Plan, covered: Coverage) -> StartOffsets:
    """Reads what there is to record of the members' subscriptions. A step that changes offsets goes first, because it
    may create the same znodes."""
    if covered.covers_all(one.subscription for one in observation.members.values()):
        return StartOffsets()
    if any(isinstance(step, WriteOffsets | DeleteOffsets | RemoveGroup) for step in decided.steps):
        return StartOffsets()
    return read_start_offsets(store, observation.group, NO_PARTITIONS, observation.topics, observation.members)


def _removes_unless_changed(decided: Plan) -> bool:
    asked = any(isinstance(step, AnswerRequest) and step.request.unchanged_since for step in decided.steps)
    return asked and _removes(decided)


def _removes(decided: Plan) -> bool:
    return any(isinstance(step, RemoveGroup) for step in decided.steps)
