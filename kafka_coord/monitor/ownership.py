"""Finds the partitions of a group that no one owns. Does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafka_coord.model import NO_PARTITIONS, PartitionSet
from kafka_coord.monitor.offsets import Committed, partitions_of, subscribed
from kafka_coord.monitor.snapshot import GroupSnapshot
from kafka_coord.settings import DEFAULT_SESSION_TIMEOUT_MS
from kafka_coord.zk import layout


@dataclass(frozen=True, slots=True)
class Unowned:
    """Partitions that have had no owner since at least ``since_ms`` (ms since 1970; ``None`` if unknown)."""

    partitions: PartitionSet = NO_PARTITIONS
    since_ms: int | None = None


def without_member(snapshot: GroupSnapshot, committed: Committed, topics_changed_ms: Mapping[str, int]) -> Unowned:
    """Returns the existing partitions that members subscribe to or ledgers list, but no registered member holds. In a
    group without members, also includes those with a committed offset."""
    seen = snapshot.observation
    free = partitions_of(seen, Committed({}) if seen.members else committed)
    free &= PartitionSet({topic: seen.topics[topic].partitions for topic in free.topics if topic in seen.topics})
    for consumer, ledger in seen.ledgers.items():
        if consumer in snapshot.registrations:
            free -= ledger.held
    return Unowned(free, _since_ms(snapshot, free, topics_changed_ms)) if free else Unowned()


def lost(snapshot: GroupSnapshot, topics_changed_ms: Mapping[str, int], now_ms: int) -> Unowned | None:
    """Returns the subscribed partitions that no one has held for longer than a session, or ``None`` if there are none.
    Also returns ``None`` for a group that is paused, has no members, or has an unreadable ledger, whose owner may
    hold the partitions.
    """
    seen = snapshot.observation
    hidden = any(one.path.startswith(layout.owners(seen.group)) for one in seen.unreadable)
    if seen.pause is not None or hidden or not seen.members:
        return None
    free = subscribed(seen)
    for ledger in seen.ledgers.values():
        free -= ledger.held
    since_ms = _since_ms(snapshot, free, topics_changed_ms)
    session_ms = max([DEFAULT_SESSION_TIMEOUT_MS, *(one.session_timeout_ms or 0 for one in seen.members.values())])
    return Unowned(free, since_ms) if free and since_ms and now_ms - since_ms > session_ms else None


def _since_ms(snapshot: GroupSnapshot, partitions: PartitionSet, topics_changed_ms: Mapping[str, int]) -> int | None:
    """Returns the time of the latest of three events: the group's last decision, the last change of its topics, and the
    first registration among its current members. ZooKeeper does not record when a partition lost its owner."""
    members = snapshot.observation.members
    if not members:
        return snapshot.decided_ms or None
    registered = [snapshot.registrations[c].ctime_ms for c in members if c in snapshot.registrations]
    changed = [topics_changed_ms.get(topic, 0) for topic in partitions.topics]
    return max([snapshot.decided_ms, *changed, min(registered)]) if registered else None
