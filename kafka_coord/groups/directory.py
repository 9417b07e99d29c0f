"""Lists the groups of both kinds, managed and client-assigned, and reads a frame of the live view."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kafka_coord.coordinator.steps import GroupState
from kafka_coord.groups.client_assigned import described, list_client_groups, offsets_unknown, with_offsets
from kafka_coord.groups.cluster import Cluster, read_cluster
from kafka_coord.groups.group import GroupDescription, GroupRow, LagTotal, LogRanges, OnOffsets, WaitingCommand
from kafka_coord.groups.instances import AskedInstances
from kafka_coord.groups.managed import describe_snapshots, group_row, list_groups
from kafka_coord.groups.snapshot import read_groups
from kafka_coord.groups.state import read_waiting
from kafka_coord.model import PartitionSet
from kafka_coord.model.names import is_legal
from kafka_coord.model.sequences import grouped

DETAILED = 20
"""A frame reads the offsets of at most this many groups: rebalancing groups first, then paused groups."""

_BUSIEST_FIRST = (GroupState.REBALANCING, GroupState.PAUSED, GroupState.STABLE, GroupState.EMPTY, GroupState.DEAD)


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """The partitions of a group that one consumer owns, and their lag. ``consumer`` is ``None`` for partitions without
    an owner. ``pending`` counts the consumer's unacknowledged commands."""

    group: str
    consumer: str | None
    owned: PartitionSet
    stopping: PartitionSet
    pending: int
    lag: LagTotal


@dataclass(frozen=True, slots=True)
class Overview:
    """One frame. ``lags`` and ``owners`` cover only the groups that were read in detail. ``note`` says what could not
    be read, and why."""

    cluster: Cluster
    groups: tuple[GroupRow, ...]
    lags: Mapping[str, LagTotal]
    owners: tuple[OwnerRow, ...]
    waiting: tuple[WaitingCommand, ...]
    note: str

    @property
    def left_out(self) -> int:
        """The number of groups that were not read in detail."""
        return len(self.groups) - len(self.lags)


def read_overview(instances: AskedInstances, names: Sequence[str], log_ranges: LogRanges | None) -> Overview:
    """Reads the groups in ``names``, or all groups if ``names`` is empty, and the busiest of them in detail. A named
    group need not exist yet."""
    store = instances.store
    cluster = read_cluster(store)
    snapshots = read_groups(store, [name for name in names if is_legal(name)] if names else cluster.groups, cluster)
    listed = list_client_groups(instances)
    # If two groups have the same name, show the managed group.
    clients = {
        one.group: one for one in listed.groups if one.group not in snapshots and one.group in (names or [one.group])
    }
    rows = [group_row(snapshot, cluster) for snapshot in snapshots.values()]
    rows += [row for row in listed.rows if row.group in clients]
    ranked = sorted(rows, key=lambda row: (_BUSIEST_FIRST.index(row.state), row.group))
    detailed = [row.group for row in ranked[:DETAILED]]
    managed = {group: snapshots[group] for group in detailed if group in snapshots}
    waiting = read_waiting(store, snapshots)
    theirs = with_offsets(instances, [clients[group] for group in detailed if group in clients])
    found = [
        *describe_snapshots(store, cluster, managed, log_ranges, waiting=waiting),
        *described(theirs, cluster.topics, log_ranges),
    ]
    found.sort(key=lambda one: one.group)
    return Overview(
        cluster,
        tuple(sorted(rows, key=lambda row: row.group)),
        {one.group: one.lag for one in found},
        tuple(row for one in found for row in _owners(one)),
        waiting.commands,
        "; ".join(dict.fromkeys(filter(None, [*(one.lag_note for one in found), *listed.missing]))),
    )


def _owners(found: GroupDescription) -> Iterator[OwnerRow]:
    of_owner = grouped(found.offsets, lambda row: row.owner)
    pending: dict[str | None, int] = {member.consumer: len(member.pending) for member in found.members}
    members = [member.consumer for member in found.members if member.registered]
    for consumer in dict.fromkeys([*members, *of_owner]):
        rows = of_owner.get(consumer, [])
        stopping = PartitionSet.of(row.tp for row in rows if row.holding == "stopping")
        owned = PartitionSet.of(row.tp for row in rows) - stopping
        lag = LagTotal.of_rows(rows)
        yield OwnerRow(found.group, consumer, owned, stopping, pending.get(consumer, 0), lag)


@dataclass(frozen=True, slots=True)
class AllGroups:
    """The groups of both kinds. ``rows`` are sorted by descending lag, then by name. ``lag_note`` says why some lags
    are unknown, and ``missing`` says which groups, or whose offsets, cannot be shown, and why."""

    cluster: Cluster
    rows: tuple[GroupRow, ...]
    lag_note: str
    missing: tuple[str, ...]


def list_all_groups(
    instances: AskedInstances, log_ranges: LogRanges | None = None, on_offsets: OnOffsets | None = None
) -> AllGroups:
    """Lists every group. If ``log_ranges`` is given, calls it once for each kind of group, adds the lags, and passes
    each group's partitions to ``on_offsets``."""
    cluster, managed, note = list_groups(instances.store, log_ranges, on_offsets)
    clients = list_client_groups(instances)
    rows, missing = clients.rows, clients.missing
    if log_ranges is not None:
        groups = with_offsets(instances, clients.groups)
        missing += tuple(offsets_unknown(groups))
        descriptions = described(groups, cluster.topics, log_ranges)
        rows = tuple(replace(row, lag=one.lag) for row, one in zip(rows, descriptions, strict=True))
        readable = (one.lag_note for one, group in zip(descriptions, groups, strict=True) if not group.problem)
        note = note or next(readable, "")
        if on_offsets is not None:
            for one in descriptions:
                on_offsets(one.group, one.offsets, 0)
    return AllGroups(cluster, tuple(sorted((*managed, *rows), key=_largest_first)), note, missing)


def _largest_first(row: GroupRow) -> tuple[int, int, str, str]:
    lag = row.lag or LagTotal.of(())
    return -(lag.lag or 0), -(lag.gone or 0), row.group, row.kind
