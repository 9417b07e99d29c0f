"""Measures the lag of all managed groups, a few at a time.

In a large cluster, most groups are at rest. The target of such a group lists its partitions and members, so only the
target and the offsets are read, unless some of the offsets are of other topics.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import nsmallest

from kafka_coord.coordinator.image import read_targets
from kafka_coord.groups.cluster import Cluster
from kafka_coord.groups.group import LagTotal, LogRanges
from kafka_coord.groups.offsets import (
    Committed,
    lags_of,
    offset_rows,
    partitions_of,
    read_all_committed,
    subscribed_among,
)
from kafka_coord.groups.state import read_groups
from kafka_coord.model import PartitionSet
from kafka_coord.monitor.dashboard.group_rows import GroupRows
from kafka_coord.monitor.lag_rings import LagRings
from kafka_coord.zk.store import Store

AT_ONCE = 20
"""The number of groups measured in one step."""
MAX_LAGGING = 20


class GroupLags:
    """The lags by group name. Only one thread may call :meth:`step`."""

    def __init__(self, store: Store, log_ranges: LogRanges, rings: LagRings) -> None:
        self.measured: dict[str, tuple[int, LagTotal]] = {}
        """Group → the time when its lag was measured (ms since 1970), and the lag."""
        self.consumers: dict[str, tuple[str, ...]] = {}
        """The members of each measured group."""
        self.furthest_behind: tuple[str, ...] = ()
        self.behind = 0
        """The number of groups with lag, or with unread records that are gone."""
        self.since_ms: int | None = None
        """The time when the oldest lag was measured (ms since 1970)."""
        self._store = store
        self._log_ranges = log_ranges
        self._rings = rings
        self._left: deque[str] = deque()

    def step(self, rows: GroupRows, cluster: Cluster, *, sampled: bool) -> bool:
        """Measures the next few groups of ``rows``. If ``sampled`` is true, adds a sample of each to the rings. Returns
        whether any group was measured."""
        if not self._left:
            names = set(rows.rows)
            self.measured = {name: found for name, found in self.measured.items() if name in names}
            self.consumers = {name: found for name, found in self.consumers.items() if name in names}
            self._left.extend(sorted(names, key=lambda name: self.measured.get(name, (0,))[0]))
        names_now = [self._left.popleft() for _ in range(min(AT_ONCE, len(self._left)))]
        resting = [] if sampled else [name for name in names_now if rows.is_at_rest(name)]
        now_ms = round(self._store.clock.time() * 1000)
        targets = self._targets(resting)
        committed = read_all_committed(self._store, names_now, cluster.topics)
        for name in [name for name, target in targets.items() if _has_others(target, committed[name])]:
            del targets[name]  # only the members' subscriptions tell which of its offsets count
        snapshots = read_groups(self._store, [name for name in names_now if name not in targets], cluster)
        partitions = {name: partitions_of(one.observation, committed[name]) for name, one in snapshots.items()}
        for name, target in targets.items():
            partitions[name] = PartitionSet.union((PartitionSet.of(committed[name].offsets), *target.values()))
        logs, _ = self._log_ranges(PartitionSet.union(partitions.values()))
        for name, wanted in partitions.items():
            offsets, seen = committed[name].offsets, snapshots[name].observation if name in snapshots else None
            theirs = None if seen is None else subscribed_among(seen, wanted)
            counted = (tp for tp in wanted if theirs is None or tp.topic in theirs)
            self.measured[name] = now_ms, LagTotal.of(lags_of(counted, offsets, logs).values())
            members = targets[name] if name in targets else snapshots[name].observation.members
            self.consumers[name] = tuple(sorted(members))
        for name, one in snapshots.items():
            if sampled:
                seen = one.observation
                judged = self._rings.judged(name, offset_rows(seen, committed[name], logs), now_ms)
                self._rings.add(name, now_ms, judged, seen.decided_ms)
                self.measured[name] = now_ms, LagTotal.of_rows(judged)
        self.since_ms = min((at for at, _ in self.measured.values()), default=None)
        behind = [(name, found) for name, (_, found) in self.measured.items() if found.lag or found.gone]
        self.behind = len(behind)
        self.furthest_behind = tuple(name for name, _ in nsmallest(MAX_LAGGING, behind, key=_largest_first))
        return bool(partitions)

    @property
    def unknown(self) -> int:
        """The number of partitions whose lag is unknown."""
        return sum(found.unknown for _, found in list(self.measured.values()))

    def _targets(self, names: Sequence[str]) -> dict[str, Mapping[str, PartitionSet]]:
        """Returns each group's target: the partitions of each member."""
        targets = read_targets(self._store, names)
        return {name: target.members if target is not None else {} for name, target in targets.items()}


def _has_others(target: Mapping[str, PartitionSet], committed: Committed) -> bool:
    """Returns whether a group with members has offsets of topics that its target does not name."""
    named = {topic for share in target.values() for topic in share.topics}
    return bool(target) and not named.issuperset(tp.topic for tp in committed.offsets)


def _largest_first(found: tuple[str, LagTotal]) -> tuple[int, int, str]:
    return -(found[1].lag or 0), -(found[1].gone or 0), found[0]
