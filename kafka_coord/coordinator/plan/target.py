"""Computes a new target with an assignor, checks the result, and makes sure that the target fits in a znode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from msgspec import structs

from kafka_coord.coordinator.assignors import AssignmentInputs, Assignor, Target
from kafka_coord.coordinator.plan.reasons import counted, cut
from kafka_coord.coordinator.plan.sizes import MAX_TARGET_BYTES, target_bytes
from kafka_coord.model import NO_PARTITIONS, Assignment
from kafka_coord.model.operations import DEFAULT_ASSIGNOR


@dataclass(frozen=True, slots=True)
class ComputedTarget:
    """A target, the assignor that computed it, and complaints about the assignor. If there is no valid target,
    ``target`` is ``None``."""

    target: Target | None
    assignor: str
    complaint: str = ""


def compute(inputs: AssignmentInputs, assignor: str, assignors: Mapping[str, Assignor]) -> ComputedTarget:
    """Computes the target. If a plug-in raises an exception or returns an invalid target, uses the default assignor and
    reports the fault."""
    try:
        proposed: Target = assignors[assignor].assign(inputs)
        fault = fault_in(proposed, inputs)
        if not fault:
            return ComputedTarget(proposed, assignor)
    except Exception as error:  # noqa: BLE001  a plug-in may fail in any way, and the group still needs a target
        fault = f"raised {error!r}"
    complaint = f"assignor {assignor} {cut(fault, 200)}; using {DEFAULT_ASSIGNOR}"
    target = assignors[DEFAULT_ASSIGNOR].assign(inputs)
    return ComputedTarget(target, DEFAULT_ASSIGNOR, complaint)


def fitted(
    computed: ComputedTarget, inputs: AssignmentInputs, assignor: Assignor, unfilled: Assignment
) -> ComputedTarget:
    """Returns the target, or one computed from scratch if the target does not fit in a znode. In a huge group,
    partition numbers become scattered after many moves. Starting from scratch moves many partitions, but the target
    then consists of runs again, so it usually fits. If it still does not, returns a complaint instead of a target."""
    size = _size(computed, unfilled)
    if size <= MAX_TARGET_BYTES:
        return computed
    afresh = replace(computed, target=assignor.assign(replace(inputs, current={})))
    if _size(afresh, unfilled) <= MAX_TARGET_BYTES:
        note = f"the target had grown to {size} bytes, so it was recomputed from scratch"
        return replace(afresh, complaint="; ".join(filter(None, (computed.complaint, note))))
    note = (
        f"no target: {counted(len(inputs.members), 'member')} and their partitions take {size} bytes,"
        f" more than the {MAX_TARGET_BYTES} that a znode may hold; split the group or shorten consumer names"
    )
    return ComputedTarget(None, computed.assignor, note)


def _size(computed: ComputedTarget, unfilled: Assignment) -> int:
    if computed.target is None:
        return 0
    return target_bytes(structs.replace(unfilled, members=computed.target.members, streams=computed.target.streams))


def fault_in(target: object, inputs: AssignmentInputs) -> str:
    """Returns what is wrong with an assignor's result, or an empty string."""
    if not isinstance(target, Target):
        return f"returned a {type(target).__name__}, not a Target"
    unknown = sorted(target.members.keys() - inputs.members.keys())
    if unknown:
        return f"named {unknown[0]!r}, which is not a member"
    counts: dict[str, int] = {}
    union: dict[str, set[int]] = {}
    subscribed: dict[str, frozenset[str]] = {}
    for topics, consumers in inputs.by_subscription():
        subscribed.update(dict.fromkeys(consumers, frozenset(topics)))
    for consumer, partitions in target.members.items():
        mine = subscribed[consumer]
        for topic, numbers in partitions.unordered():
            if topic not in mine:
                return f"gave {consumer} topic {topic}, which it does not subscribe to"
            counts[topic] = counts.get(topic, 0) + len(numbers)
            union.setdefault(topic, set()).update(numbers)
    for topic, info in inputs.topics.items():
        assigned = union.get(topic, set())
        if counts.get(topic, 0) != len(assigned):
            return f"gave partitions of {topic} to more than one member"
        if assigned != info.partitions:
            wrong = sorted(assigned ^ info.partitions)[:3]
            return f"left out or invented partitions of {topic} (such as {wrong})"
    return _fault_in_streams(target, inputs)


def _fault_in_streams(target: Target, inputs: AssignmentInputs) -> str:
    for consumer, streams in target.streams.items():
        if consumer not in inputs.members:
            return f"gave streams to {consumer!r}, which is not a member"
        owned = target.members.get(consumer, NO_PARTITIONS)
        for partition, stream in streams.items():
            if partition not in owned:
                return f"gave a stream for {partition} to {consumer}, which was not given that partition"
            if not 0 <= stream < inputs.streams_of(consumer, partition.topic):
                return f"gave {partition} to stream {stream} of {consumer}, which does not run that stream"
    return ""
