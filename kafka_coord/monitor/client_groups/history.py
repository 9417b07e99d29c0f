"""Builds the history of a client-assigned group from its records in the groups log. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kafka_coord.classic_groups.metadata import CONSUMER, GroupMetadata, MemberMetadata
from kafka_coord.coordinator.plan.reasons import CAUSES, plural
from kafka_coord.grouplog.records import Claim, GroupEntry
from kafka_coord.model import NO_PARTITIONS, Departure, PartitionSet
from kafka_coord.model.operations import Cause, Decision
from kafka_coord.model.sequences import grouped
from kafka_coord.monitor.client_groups.groups import owned_by
from kafka_coord.monitor.client_groups.log import LogEntry
from kafka_coord.wire.consumer_protocol import subscribed_topics

_Owned = Mapping[str, PartitionSet]


def decisions(entries: Iterable[LogEntry], group: str) -> tuple[Decision, ...]:
    """Returns one decision for each generation in the log, oldest first. Generations without an assignment are not in
    the log. ``epoch`` is the term that wrote the generation, or 0 if the log no longer contains that term's claim."""
    found: list[Decision] = []
    before: GroupMetadata | None = None
    term = 0
    for one in entries:
        if isinstance(one.entry, Claim):
            term = one.entry.term
        if not isinstance(one.entry, GroupEntry) or one.entry.group != group:
            continue
        now = one.entry.value
        if now is not None and not (before is not None and before.generation_id == now.generation_id):
            found.append(_decision(before, now, term, one.timestamp_ms))
        before = now
    return tuple(found)


def _decision(before: GroupMetadata | None, now: GroupMetadata, term: int, written_ms: int) -> Decision:
    had, has = owned_in(before), owned_in(now)
    moves = {}
    for name in sorted(had.keys() | has.keys()):
        old, new = had.get(name, NO_PARTITIONS), has.get(name, NO_PARTITIONS)
        moves[name] = new - old, old - new
    gained, lost = PartitionSet.union(g for g, _ in moves.values()), PartitionSet.union(p for _, p in moves.values())
    why = _why(before, now, had, has)
    return Decision(
        generation=now.generation_id,
        epoch=term,
        reason="; ".join(words for _, words in why),
        assignor=now.protocol_name or "",
        decided_at_ms=now.state_since_ms if now.state_since_ms > 0 else written_ms,
        members=len(now.members),
        partitions=sum(map(len, has.values())),
        moved=len(gained & lost),
        started=len(gained),
        stopped=len(lost),
        moves={
            name: {kind: str(what) for kind, what in (("gained", more), ("lost", less)) if what}
            for name, (more, less) in moves.items()
            if more or less
        },
        causes=tuple(dict.fromkeys(cause for cause, _ in why if cause is not None)),
    )


def _why(before: GroupMetadata | None, now: GroupMetadata, had: _Owned, has: _Owned) -> list[tuple[Cause | None, str]]:
    """Describes the differences from the previous generation."""
    if before is None and now.generation_id > 1:
        return [(None, "earlier generations are no longer in the log")]
    old, new = _subscribed(before), _subscribed(now)
    why: list[tuple[Cause | None, str]] = []
    if joined := sorted(new.keys() - old.keys()):
        why.append((Cause.MEMBER_JOINED, f"{_named(joined)} joined"))
    if left := sorted(old.keys() - new.keys()):
        why += _gone(left, now.departed)
    if replaced := sorted(name for name in old.keys() & new.keys() if name in now.departed):
        why += _gone(replaced, now.departed)
    if changed := sorted(name for name in old.keys() & new.keys() if old[name] != new[name]):
        why.append((Cause.MEMBER_CHANGED, f"{_named(changed)} changed subscriptions"))
    if before is not None and before.members and now.members and before.protocol_name != now.protocol_name:
        why.append((Cause.ASSIGNOR_CHANGED, f"assignor {now.protocol_name} instead of {before.protocol_name}"))
    if not why and PartitionSet.union(had.values()) != PartitionSet.union(has.values()):
        why.append((Cause.TOPIC_CHANGED, "a topic changed, so different partitions are assigned"))
    return why or [(Cause.MEMBER_CHANGED, "a member rejoined")]


def _gone(names: Sequence[str], departed: Mapping[str, Departure]) -> list[tuple[Cause | None, str]]:
    """Says how members went. A record that another program wrote does not say it."""

    def said(name: str) -> tuple[Cause, str]:
        how = departed.get(name)
        return (CAUSES[how.kind], str(how)) if how is not None else (Cause.MEMBER_LEFT, "left or timed out")

    return [(cause, f"{_named(who)} {words}") for (cause, words), who in grouped(names, said).items()]


def _named(members: Sequence[str]) -> str:
    return f"{plural('member', len(members))} {', '.join(members)}"


def _members(group: GroupMetadata | None) -> dict[str, MemberMetadata]:
    """Returns the members by instance id, or by member id if they have none."""
    return {one.instance_id or one.member_id: one for one in (group.members.values() if group is not None else ())}


def _subscribed(group: GroupMetadata | None) -> dict[str, frozenset[str]]:
    """Returns each member's subscribed topics. They are unknown for members that are not consumers."""
    protocol = group.protocol_name if group is not None and group.protocol_type == CONSUMER else None
    return {name: subscribed_topics([one.metadata(protocol)]) for name, one in _members(group).items()}


def owned_in(group: GroupMetadata | None) -> dict[str, PartitionSet]:
    """Returns each member's partitions by its instance id, or by its member id if it has none. Returns an empty mapping
    if the members are not consumers."""
    if group is None or group.protocol_type != CONSUMER:
        return {}
    return {name: owned_by(one.assignment) for name, one in _members(group).items()}
