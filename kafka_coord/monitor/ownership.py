"""Finds the partitions to which a group subscribes but which nobody owns. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafka_coord.model import PartitionSet
from kafka_coord.monitor.offsets import subscribed
from kafka_coord.monitor.snapshot import GroupSnapshot
from kafka_coord.settings import DEFAULT_SESSION_TIMEOUT_MS
from kafka_coord.zk import layout


@dataclass(frozen=True, slots=True)
class Unowned:
    """Partitions that nobody has owned for at least ``for_ms``."""

    partitions: PartitionSet
    for_ms: int


def unowned(snapshot: GroupSnapshot, topics_changed_ms: Mapping[str, int], now_ms: int) -> Unowned | None:
    """Returns the subscribed partitions that nobody has held for longer than a session, or ``None`` if there are none.
    ZooKeeper does not record when a partition lost its owner. So the time counts from the latest of three events: the
    group's last decision, the last change of its topics, and the first registration among its current members. Returns
    ``None`` for a paused group, and for a group with an unreadable ledger, because that ledger may hold them.
    """
    seen = snapshot.observation
    hidden = any(one.path.startswith(layout.owners(seen.group)) for one in seen.unreadable)
    if seen.pause is not None or hidden or not seen.members:
        return None
    wanted = subscribed(seen)
    for ledger in seen.ledgers.values():
        wanted -= ledger.held
    if not wanted:
        return None
    since_ms = max([snapshot.decided_ms, *(topics_changed_ms.get(topic, 0) for topic in wanted.topics)])
    registered = [snapshot.registrations[c].ctime_ms for c in seen.members if c in snapshot.registrations]
    since_ms = max(since_ms, min(registered, default=now_ms))
    session_ms = max([DEFAULT_SESSION_TIMEOUT_MS, *(one.session_timeout_ms or 0 for one in seen.members.values())])
    return Unowned(wanted, now_ms - since_ms) if now_ms - since_ms > session_ms else None
