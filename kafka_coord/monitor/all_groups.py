"""Lists the groups of both kinds, managed and client-assigned, with their lag."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kafka_coord.monitor.client_groups.asking import AskedInstances
from kafka_coord.monitor.client_groups.groups import described, list_client_groups, offsets_unknown, with_offsets
from kafka_coord.monitor.cluster import Cluster
from kafka_coord.monitor.groups import GroupRow, LogRanges, OnOffsets, list_groups
from kafka_coord.monitor.offsets import LagTotal


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
