"""Describes why a target is new and what a group is waiting for, in text that stays short even for large groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kafka_coord.coordinator.assignors import AssignmentInputs
from kafka_coord.model import Assignment, Cause, Departure, DepartureKind, PartitionSet, Request
from kafka_coord.model.member import EXPIRED
from kafka_coord.model.sequences import grouped

MAX_REASON_CHARS = 300

CAUSES = {
    DepartureKind.LEFT: Cause.MEMBER_LEFT,
    DepartureKind.EXPIRED: Cause.MEMBER_EXPIRED,
    DepartureKind.REPLACED: Cause.MEMBER_REPLACED,
    DepartureKind.EVICTED: Cause.MEMBER_EVICTED,
}


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason for a new target, as text of at most ``MAX_REASON_CHARS``, and as a list of causes, most important
    first."""

    text: str
    causes: tuple[Cause, ...]


def reason_for_target(
    stored: Assignment | None,
    inputs: AssignmentInputs,
    assignor: str,
    *,
    requests: Iterable[Request] = (),
    evicted: Mapping[str, str] | None = None,
    recreated: Iterable[str] = (),
    with_place: Iterable[str] = (),
    departures: Mapping[str, Departure] | None = None,
    refused: Mapping[str, Iterable[str]] | None = None,
) -> Reason:
    """Returns the reason for a new target: what has changed since the stored one. ``with_place`` contains the consumers
    that have a place in their ledger; if one of them has left, its grace period has ended. ``evicted`` maps consumers
    to the reasons, and ``departures`` says how the others went. ``refused`` maps members to the topics that they may
    not read."""
    before = stored.members if stored is not None else {}
    evicted = evicted or {}
    out = evicted.keys() & before.keys()
    joined, left = inputs.members.keys() - before.keys(), before.keys() - inputs.members.keys() - out
    grace_ended = left & set(with_place)
    changes = [f"{names(joined)} joined"] if joined else []
    changes += how_they_went(left, departures or {}, grace_ended)
    changes += how_they_were_evicted({consumer: evicted[consumer] for consumer in out})
    parts = [f"operator asked: {request.reason}" if request.reason else "operator asked" for request in requests]
    kinds = {Cause.OPERATOR} if parts else set()
    if changes:
        parts.append(f"{plural('member', len(joined) + len(left) + len(out))} {', '.join(changes)}")
    kinds |= {
        cause
        for cause, consumers in (
            (Cause.MEMBER_JOINED, joined),
            (Cause.MEMBER_EVICTED, out),
            (Cause.GRACE_ENDED, grace_ended),
        )
        if consumers
    }
    kinds |= causes_of(left - grace_ended, departures or {})
    forbidden = refused or {}
    unread = {topic for topics in forbidden.values() for topic in topics}
    topics = _topic_changes(before, inputs, set(recreated), unread, members_changed=bool(changes))
    if topics:
        parts += topics
        kinds.add(Cause.TOPIC_CHANGED)
    if stored is not None and stored.assignor != assignor and before and inputs.members:
        parts.append(f"assignor changed from {stored.assignor} to {assignor}")
        kinds.add(Cause.ASSIGNOR_CHANGED)
    refusing = [f"{consumer} may not read {names(topics)}" for consumer, topics in sorted(forbidden.items())]
    parts += first_of(refusing, 2, "members may not read some topics")
    if not parts:
        parts.append("subscriptions, capacities or assignor changed")
        kinds.add(Cause.MEMBER_CHANGED)
    if forbidden and not kinds:
        kinds.add(Cause.MEMBER_CHANGED)
    return Reason(cut("; ".join(parts), MAX_REASON_CHARS), tuple(cause for cause in Cause if cause in kinds))


def how_they_were_evicted(reasons: Mapping[str, str]) -> list[str]:
    """Says who was evicted, with each reason, such as ``c1 c2 evicted (operator asked)``."""
    by_reason = grouped(sorted(reasons), reasons.__getitem__).items()
    return [f"{names(who)} evicted ({why})" if why else f"{names(who)} evicted" for why, who in by_reason]


def how_they_went(
    gone: Iterable[str], departures: Mapping[str, Departure], grace_ended: Collection[str] = ()
) -> list[str]:
    """Says how members went, such as ``c1 c2 left`` and ``c3 expired after 10 s``. Those in ``grace_ended`` did not
    return while their place was kept."""
    words = {
        consumer: f"{departures.get(consumer, EXPIRED)}{' and did not return' * (consumer in grace_ended)}"
        for consumer in sorted(gone)
    }
    return [f"{names(consumers)} {how}" for how, consumers in sorted(grouped(words, words.__getitem__).items())]


def causes_of(gone: Iterable[str], departures: Mapping[str, Departure]) -> set[Cause]:
    return {CAUSES[departures.get(consumer, EXPIRED).kind] for consumer in gone}


def _topic_changes(
    before: Mapping[str, PartitionSet],
    inputs: AssignmentInputs,
    recreated: set[str],
    unread: set[str],
    *,
    members_changed: bool,
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
        gone = counts.keys() - inputs.topics.keys() - unread
        parts += [f"topic {topic} is gone" for topic in sorted(gone)]
    return [*parts[:3], f"{len(parts) - 3} more topics changed"] if len(parts) > 4 else parts


def first_of(parts: Sequence[str], most: int, what: str) -> list[str]:
    """Returns the first ``most`` parts and, if that is not all, how many more ``what`` there are."""
    return [*parts[:most], f"{len(parts) - most} more {what}"] if len(parts) > most else [*parts]


def names(consumers: Iterable[str], most: int = 4) -> str:
    """Joins names: ``c1 c2 c3 c4 and 12 more``."""
    ordered = sorted(consumers)
    shown = " ".join(ordered[:most])
    return f"{shown} and {len(ordered) - most} more" if len(ordered) > most else shown


def cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[: chars - 1] + "…"


def partitions_text(partitions: PartitionSet) -> str:
    """Lists partitions (``flights[0-3]``), or only counts them if the list would be too long."""
    written = str(partitions)
    return written if len(written) <= 60 else f"{counted(len(partitions), 'partition')}"


def counted(number: int, thing: str) -> str:
    """Counts things: ``1 partition``, ``2 partitions``."""
    return f"{number} {plural(thing, number)}"


def plural(thing: str, number: int) -> str:
    """Returns the noun in the form that ``number`` requires."""
    return thing if number == 1 else f"{thing}s"


def per_consumer(verb: str, found: Mapping[str, PartitionSet], most: int = 3) -> str:
    """Lists consumers: ``c1 to stop flights[3], c2 to stop flights[4] and 3 more``."""
    shown = [f"{consumer} to {verb} {partitions_text(found[consumer])}" for consumer in sorted(found)[:most]]
    text = ", ".join(shown)
    return f"{text} and {len(found) - most} more" if len(found) > most else text
