"""Sentences: why there is a new target, and what a group is waiting for. Kept short however large the group is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafka_coord.coordinator.assignors import AssignmentInputs
from kafka_coord.model import Assignment, PartitionSet, Request

MAX_REASON_CHARS = 300


def reason_for_target(
    stored: Assignment | None,
    inputs: AssignmentInputs,
    assignor: str,
    *,
    requests: Iterable[Request] = (),
    evicted: Iterable[str] = (),
    recreated: Iterable[str] = (),
) -> str:
    """Why a new target is computed, from what changed since the stored one; at most ``MAX_REASON_CHARS``."""
    parts = [f"operator asked: {r.reason}" if r.reason else "operator asked" for r in requests]
    before = stored.members if stored is not None else {}
    thrown_out = sorted(set(evicted) & before.keys())
    joined = sorted(inputs.members.keys() - before.keys())
    left = sorted(before.keys() - inputs.members.keys() - set(thrown_out))
    changes = [
        f"{names(found)} {verb}"
        for found, verb in ((joined, "joined"), (left, "left"), (thrown_out, "evicted"))
        if found
    ]
    if changes:
        many = len(joined) + len(left) + len(thrown_out) > 1
        parts.append(f"member{'s' if many else ''} " + ", ".join(changes))
    parts += _topic_changes(before, inputs, set(recreated), members_changed=bool(changes))
    if stored is not None and stored.assignor != assignor and before and inputs.members:
        parts.append(f"assignor changed from {stored.assignor} to {assignor}")
    return cut("; ".join(parts) or "subscriptions, capacities or assignor changed", MAX_REASON_CHARS)


def _topic_changes(
    before: Mapping[str, PartitionSet], inputs: AssignmentInputs, recreated: set[str], *, members_changed: bool
) -> list[str]:
    counts: dict[str, int] = {}
    for partitions in before.values():
        for topic, numbers in partitions.unordered():
            counts[topic] = counts.get(topic, 0) + len(numbers)
    parts = []
    for topic, info in inputs.topics.items():
        now = len(info.partitions)
        if topic in recreated:
            parts.append(f"topic {topic} was deleted and created again")
        elif topic in counts and counts[topic] != now:
            verb = "grew" if now > counts[topic] else "shrank"
            parts.append(f"topic {topic} {verb} from {counts[topic]} to {now} partitions")
        elif topic not in counts and now and before and not members_changed:
            parts.append(f"topic {topic} is new, with {now} partitions")
    if not members_changed:
        parts += [f"topic {topic} is gone" for topic in sorted(counts.keys() - inputs.topics.keys())]
    return [*parts[:3], f"{len(parts) - 3} more topics changed"] if len(parts) > 4 else parts


def names(consumers: Iterable[str], most: int = 4) -> str:
    """``c1 c2 c3 c4 and 12 more``."""
    found = sorted(consumers)
    shown = " ".join(found[:most])
    return f"{shown} and {len(found) - most} more" if len(found) > most else shown


def cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[: chars - 1] + "…"


def partitions_text(partitions: PartitionSet, chars: int = 60) -> str:
    """``flights[0-3]``, or how many there are where that grows long."""
    written = str(partitions)
    return written if len(written) <= chars else f"{counted(len(partitions), 'partition')}"


def counted(number: int, thing: str) -> str:
    """``1 partition``, ``2 partitions``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def per_consumer(verb: str, found: Mapping[str, PartitionSet], most: int = 3) -> str:
    """``c1 to stop flights[3], c2 to stop flights[4] and 3 more``."""
    shown = [f"{consumer} to {verb} {partitions_text(found[consumer])}" for consumer in sorted(found)[:most]]
    text = ", ".join(shown)
    return f"{text} and {len(found) - most} more" if len(found) > most else text
