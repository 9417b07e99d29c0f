"""One frame of the live view: groups, who owns how much and how far behind they are, what waits for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafka_coord.coordinator.steps import GroupState
from kafka_coord.model import PartitionSet
from kafka_coord.monitor.channel import WaitingCommand, read_waiting
from kafka_coord.monitor.cluster import Cluster, read_cluster
from kafka_coord.monitor.groups import EndOffsets, GroupRow, group_row
from kafka_coord.monitor.offsets import OffsetRow, offset_rows, partitions_of, read_committed
from kafka_coord.monitor.snapshot import GroupSnapshot, read_groups
from kafka_coord.zk.store import Store

DETAILED = 20
"""Groups whose offsets are read for one frame: the busiest, where none were named."""

_BUSY = (GroupState.REBALANCING, GroupState.PAUSED, GroupState.STABLE)


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """What one consumer owns of a group and how far behind it is. ``lag`` counts the partitions where it is known;
    ``unknown`` is the number of those where it is not. ``consumer`` is ``None`` for partitions nobody owns."""

    group: str
    consumer: str | None
    owned: PartitionSet
    stopping: PartitionSet
    pending: int
    lag: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Overview:
    """One frame. ``lags`` maps a group to (records behind, partitions where that is unknown); not read for all."""

    cluster: Cluster
    groups: tuple[GroupRow, ...]
    lags: dict[str, tuple[int, int]]
    owners: tuple[OwnerRow, ...]
    waiting: tuple[WaitingCommand, ...]
    note: str


def read_overview(store: Store, names: Sequence[str], end_offsets: EndOffsets | None) -> Overview:
    """All groups in brief and the named ones (by default the busiest) in detail; a name may not exist (yet)."""
    cluster = read_cluster(store)
    snapshots = read_groups(store, names or cluster.groups, cluster)
    rows = tuple(group_row(snapshot, cluster) for _, snapshot in sorted(snapshots.items()))
    ranked = sorted((row for row in rows if row.state in _BUSY), key=lambda row: (_BUSY.index(row.state), row.group))
    detailed = [row.group for row in ranked[:DETAILED]]
    waiting = read_waiting(store, snapshots)
    committed = {group: read_committed(store, group, cluster.topics) for group in detailed}
    wanted = PartitionSet()
    for group in detailed:
        wanted |= partitions_of(snapshots[group].observation, committed[group])
    ends, note = end_offsets(wanted) if end_offsets is not None else ({}, "")
    owners: list[OwnerRow] = []
    lags: dict[str, tuple[int, int]] = {}
    for group in sorted(detailed):
        offsets = offset_rows(snapshots[group].observation, committed[group], ends)
        lags[group] = _sum(offsets)
        owners += _owners(snapshots[group], offsets)
    return Overview(cluster, rows, lags, tuple(owners), waiting.commands, note)


def _owners(snapshot: GroupSnapshot, offsets: Sequence[OffsetRow]) -> list[OwnerRow]:
    seen = snapshot.observation
    found: dict[str | None, list[OffsetRow]] = {consumer: [] for consumer in sorted(seen.members)}
    for row in offsets:
        found.setdefault(row.owner, []).append(row)
    owners = []
    for consumer, rows in found.items():
        lag, unknown = _sum(rows)
        held = {kind: PartitionSet.of((r.topic, r.partition) for r in rows if r.holding == kind) for kind in _HOLDINGS}
        unowned = PartitionSet.of((r.topic, r.partition) for r in rows if consumer is None)
        pending = len(snapshot.pending.get(consumer, ())) if consumer else 0
        owned = held["owned"] if consumer else unowned
        owners.append(OwnerRow(snapshot.group, consumer, owned, held["stopping"], pending, lag, unknown))
    return owners


_HOLDINGS = ("owned", "stopping")


def _sum(rows: Sequence[OffsetRow]) -> tuple[int, int]:
    return sum(row.lag or 0 for row in rows), sum(row.lag is None for row in rows)
