"""Reads one frame of the live view: groups, owners and their lag, and outstanding commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka_coord.coordinator.steps import GroupState
from kafka_coord.model import PartitionSet
from kafka_coord.model.names import is_legal
from kafka_coord.monitor.channel import WaitingCommand, read_waiting
from kafka_coord.monitor.client_groups.asking import Instances
from kafka_coord.monitor.client_groups.groups import list_client_groups, with_offsets
from kafka_coord.monitor.cluster import Cluster, read_cluster
from kafka_coord.monitor.groups import EndOffsets, GroupRow, group_row
from kafka_coord.monitor.offsets import OffsetRow, offset_rows, partitions_of, read_committed
from kafka_coord.monitor.snapshot import read_groups

DETAILED = 20
"""The maximum number of groups whose offsets one frame reads. Rebalancing groups come first, then paused ones."""

_BUSY = (GroupState.REBALANCING, GroupState.PAUSED, GroupState.STABLE)


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """The partitions of a group that one consumer owns, and their lag. ``lag`` is the sum of the known lags.
    ``unknown`` counts the partitions of unknown lag. ``consumer`` is ``None`` for partitions that nobody owns.
    """

    group: str
    consumer: str | None
    owned: PartitionSet
    stopping: PartitionSet
    pending: int
    lag: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Overview:
    """One frame. ``lags`` maps some of the groups to (records behind, partitions with unknown lag)."""

    cluster: Cluster
    groups: tuple[GroupRow, ...]
    lags: dict[str, tuple[int, int]]
    owners: tuple[OwnerRow, ...]
    waiting: tuple[WaitingCommand, ...]
    note: str


def read_overview(instances: Instances, names: Sequence[str], end_offsets: EndOffsets | None) -> Overview:
    """Reads the groups in ``names``, or all groups if it is empty. Reads the busiest of them in detail. A named group
    need not exist yet."""
    store = instances.store
    cluster = read_cluster(store)
    snapshots = read_groups(store, [name for name in names if is_legal(name)] if names else cluster.groups, cluster)
    listed = list_client_groups(instances)
    # If two groups share a name, show the managed one.
    clients = {
        one.group: one for one in listed.groups if one.group not in snapshots and one.group in (names or [one.group])
    }
    rows = tuple(
        sorted(
            (
                *(group_row(snapshot, cluster) for snapshot in snapshots.values()),
                *(row for row in listed.rows if row.group in clients),
            ),
            key=lambda row: row.group,
        )
    )
    ranked = sorted((row for row in rows if row.state in _BUSY), key=lambda row: (_BUSY.index(row.state), row.group))
    detailed = [row.group for row in ranked[:DETAILED]]
    waiting = read_waiting(store, snapshots)
    committed = {group: read_committed(store, group, cluster.topics) for group in detailed if group in snapshots}
    theirs = {
        one.group: one for one in with_offsets(instances, [clients[group] for group in detailed if group in clients])
    }
    partitions = {group: partitions_of(snapshots[group].observation, found) for group, found in committed.items()}
    partitions |= {group: found.partitions(cluster.topics) for group, found in theirs.items()}
    wanted = PartitionSet.union(partitions.values())
    ends, note = end_offsets(wanted) if end_offsets is not None else ({}, "")
    owners: list[OwnerRow] = []
    lags: dict[str, tuple[int, int]] = {}
    for group in sorted(detailed):
        if group in theirs:
            offsets = theirs[group].offsets(partitions[group], ends)
            members, pending = [member.consumer for member in theirs[group].members], dict[str, int]()
        else:
            snapshot = snapshots[group]
            offsets = offset_rows(snapshot.observation, committed[group], ends)
            members = sorted(snapshot.observation.members)
            pending = {one: len(commands) for one, commands in snapshot.pending.items()}
        lags[group] = _sum(offsets)
        owners += _owners(group, members, pending, offsets)
    notes = [*([note] if note else []), *listed.missing]
    return Overview(cluster, rows, lags, tuple(owners), waiting.commands, "; ".join(notes))


def _owners(
    group: str, members: Sequence[str], pending: Mapping[str, int], offsets: Sequence[OffsetRow]
) -> list[OwnerRow]:
    """``pending`` maps each consumer to the number of its unacknowledged commands."""
    found: dict[str | None, list[OffsetRow]] = {consumer: [] for consumer in members}
    for row in offsets:
        found.setdefault(row.owner, []).append(row)
    owners = []
    for consumer, rows in found.items():
        lag, unknown = _sum(rows)
        held = {kind: PartitionSet.of((r.topic, r.partition) for r in rows if r.holding == kind) for kind in _HOLDINGS}
        unowned = PartitionSet.of((r.topic, r.partition) for r in rows if consumer is None)
        owned = held["owned"] if consumer else unowned
        owners.append(OwnerRow(group, consumer, owned, held["stopping"], pending.get(consumer or "", 0), lag, unknown))
    return owners


_HOLDINGS = ("owned", "stopping")


def _sum(rows: Sequence[OffsetRow]) -> tuple[int, int]:
    return sum(row.lag or 0 for row in rows), sum(row.lag is None for row in rows)
