"""The one lag service: samples the lag of groups of every kind, and keeps what trends and rates need.

Metrics, dashboard and ``doctor`` ask it. It keeps a bounded number of samples, so that a trend is available at once.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from typing import TYPE_CHECKING

from msgspec import structs

from kafka_coord.groups.cluster import Cluster
from kafka_coord.groups.group import (
    AgeBy,
    GroupDescription,
    GroupRow,
    LagTotal,
    LogRanges,
    OffsetRow,
    Verdict,
    counted,
    rounded,
)
from kafka_coord.groups.lag_trend import (
    LagSample,
    Trends,
    age_by_rate,
    hot_partitions,
    total_trend,
    trend,
    verdict,
    verdict_of_group,
)
from kafka_coord.groups.next_records import NextRecords
from kafka_coord.groups.verbs import Contact, GroupOffsets
from kafka_coord.model import TopicPartition

if TYPE_CHECKING:
    from kafka_coord.groups.directory import AllGroups, GroupDirectory

log = logging.getLogger(__name__)

WARNING_MS = 60_000
KEPT_MS = 3_600_000
MAX_SAMPLES = 200_000
"""The maximum number of partition samples in all groups together (about 40 MB). If there are more, the group that was
sampled least recently is dropped."""
_OF_GROUP, _OF_PARTITION, _LEAST = 20_000, 720, 36
_TRIMMED = 60
"""How many old totals are removed at a time. In between, totals are only appended, so updates to pages stay small."""


@dataclass(slots=True)
class _Ring:
    totals: list[tuple[int, int | None, int, int | None]] = field(default_factory=list)
    samples: dict[TopicPartition, list[LagSample]] = field(default_factory=dict)
    counts: frozenset[TopicPartition] = frozenset()
    """The partitions of the last sample that count in totals."""

    @property
    def unknown(self) -> int | None:
        """The number of partitions whose lag is unknown in the last sample."""
        return self.totals[-1][2] if self.totals else None

    @property
    def known_totals(self) -> list[tuple[int, int]]:
        """The (ms since 1970, lag) of each sample that is comparable with the last one: both have the same number of
        partitions with an unknown lag."""
        return [(at, lag) for at, lag, unknown, _ in self.totals if lag is not None and unknown == self.unknown]

    @property
    def size(self) -> int:
        """The size in samples. Each partition counts as two more samples, since its own entry takes that much
        memory."""
        return sum(2 + len(taken) for taken in self.samples.values())


class LagService:
    """The recent lag samples of every group. Thread-safe: several writers (an open page, the metrics) may sample the
    same group. ``next_records`` finds out which offsets hold no record; without it, every offset counts as a record.
    If a managed and a client-assigned group have the same name, only the managed group may be sampled. A group is late
    once its oldest waiting record is older than ``warning_ms``."""

    def __init__(
        self,
        most_samples: int = MAX_SAMPLES,
        next_records: NextRecords | None = None,
        warning_ms: int = WARNING_MS,
    ) -> None:
        self.warning_ms = warning_ms
        self._next_records = next_records
        self._lock = threading.Lock()
        self._most = most_samples
        self._size = 0
        self._rings: OrderedDict[str, _Ring] = OrderedDict()

    def judged(self, groups: Sequence[GroupOffsets], now_ms: int) -> list[GroupOffsets]:
        """Returns the groups with a lag that counts only from the next record on, and with its age. May read from the
        brokers."""
        rows: Iterable[tuple[OffsetRow, ...]] = (one.rows for one in groups)
        if self._next_records is not None:
            rows = self._next_records.read([(one.group, one.rows) for one in groups], now_ms)
        return [
            replace(one, rows=tuple(self._aged(one.group, row, now_ms) for row in theirs))
            for one, theirs in zip(groups, rows, strict=True)
        ]

    def _aged(self, group: str, row: OffsetRow, now_ms: int) -> OffsetRow:
        """Returns the row with the age of its lag: by the rate, unless the next record's timestamp tells it."""
        if row.lag is None or row.end_offset is None or row.lag_s is not None:
            return row
        if not row.lag:
            return structs.replace(row, lag_s=0.0)
        with self._lock:
            ring = self._rings.get(group)
            ends = [(one.at_ms, one.end) for one in ring.samples.get(row.tp, ())] if ring is not None else []
        known = [(at, end) for at, end in ends if end is not None and at < now_ms]
        age_s = age_by_rate([*known, (now_ms, row.end_offset)], row.end_offset - row.lag, now_ms)
        return structs.replace(row, lag_s=rounded(age_s), lag_s_by=None if age_s is None else AgeBy.RATE)

    def sampled(self, groups: Sequence[GroupOffsets], now_ms: int) -> list[GroupOffsets]:
        """Adds a sample of each group, and returns the groups as judged."""
        found = self.judged(groups, now_ms)
        for one in found:
            self.add(one.group, now_ms, one.rows, one.decided_ms)
        return found

    def described(
        self, found: Sequence[GroupDescription], now_ms: int, *, sampled: bool = False
    ) -> list[GroupDescription]:
        """Returns the descriptions with the lags as judged. If ``sampled``, adds a sample of each group."""
        offsets = [GroupOffsets(one.group, one.kind, one.offsets, one.decided_at_ms or 0, {}) for one in found]
        rows = (self.sampled if sampled else self.judged)(offsets, now_ms)
        return [replace(one, offsets=judged.rows) for one, judged in zip(found, rows, strict=True)]

    def listed(
        self, directory: GroupDirectory, log_ranges: LogRanges, *, most: int | None = None, sampled: bool = False
    ) -> AllGroups:
        """Lists all groups. The lags of the ``most`` groups with the largest lag (by default, of all) are as judged.
        If ``sampled``, adds a sample of each of these. Raises :class:`KafkaCoordError`."""
        now_ms = round(directory.store.clock.time() * 1000)
        found: dict[str, GroupOffsets] = {}
        listed = directory.list(log_ranges, lambda one: found.setdefault(one.group, one))
        wanted = [row for row in listed.rows[:most] if row.group in found and found[row.group].kind is row.kind]
        # the groups with the largest lag are sampled last, so that they are dropped last
        judged = (self.sampled if sampled else self.judged)([found[row.group] for row in reversed(wanted)], now_ms)
        lags = {(one.group, one.kind): LagTotal.of_rows(one.rows) for one in judged}
        rows = tuple(row.with_lag(lags.get((row.group, row.kind))) for row in listed.rows)
        return replace(listed, rows=rows)

    def add(self, group: str, now_ms: int, rows: Sequence[OffsetRow], decided_ms: int = 0) -> None:
        """Adds a sample whose reading began at ``now_ms``, unless the last sample is at least as new. ``decided_ms`` is
        the time of the group's last rebalance."""
        total, counts = LagTotal.of_rows(rows), frozenset(row.tp for row in counted(rows))
        most = max(_LEAST, min(_OF_PARTITION, _OF_GROUP // max(1, len(rows))))
        with self._lock:
            ring = self._rings.setdefault(group, _Ring())
            self._rings.move_to_end(group)
            before = ring.size
            if ring.totals and now_ms <= ring.totals[-1][0]:
                return
            ring.totals.append((now_ms, total.lag, total.lag_unknown, total.gone))
            if len(ring.totals) > _OF_PARTITION + _TRIMMED or ring.totals[0][0] < now_ms - KEPT_MS - 300_000:
                del ring.totals[:_TRIMMED]
            kept: dict[TopicPartition, list[LagSample]] = {}
            for row in rows:
                tp = row.tp
                kept[tp] = taken = ring.samples.get(tp, [])
                still_ms = None if row.committed_ms is None else max(row.committed_ms, decided_ms)
                if taken and still_ms is not None and still_ms < (taken[-1].still_ms or 0):
                    continue  # another writer's sample began earlier, but read this partition later
                owned = row.holding == "owned"
                gone = row.gone or 0
                taken.append(
                    LagSample(
                        now_ms, row.committed_offset, row.lag, owned, still_ms, bool(row.unread), gone, row.end_offset
                    )
                )
                while len(taken) > most or taken[0].at_ms < now_ms - KEPT_MS:
                    del taken[0]
            ring.samples, ring.counts = kept, counts
            self._size += ring.size - before
            while self._size > self._most and len(self._rings) > 1:
                self._size -= self._rings.popitem(last=False)[1].size

    def totals(self, group: str) -> list[tuple[int, int | None, int, int | None]]:
        """Returns one [ms since 1970, lag, number of partitions whose lag is unknown, number of unread records that are
        gone] per sample, oldest first."""
        with self._lock:
            ring = self._rings.get(group)
            return list(ring.totals) if ring is not None else []

    def samples(self, group: str, tp: TopicPartition) -> list[LagSample]:
        with self._lock:
            ring = self._rings.get(group)
            return list(ring.samples.get(tp, ())) if ring is not None else []

    def last_offsets(self, group: str) -> dict[TopicPartition, int]:
        """Returns the last known committed offset of each partition."""
        with self._lock:
            ring = self._rings.get(group) or _Ring()
            known = ((tp, one.committed) for tp, taken in ring.samples.items() for one in taken)
            return {tp: committed for tp, committed in known if committed is not None}

    def trends(self, group: str) -> Trends:
        """Returns the trends that the group's samples show."""
        with self._lock:
            ring = self._rings.get(group) or _Ring()
            found = {tp: list(taken) for tp, taken in ring.samples.items()}
            totals, counts = ring.known_totals, ring.counts
        trends = {tp: trend(taken) for tp, taken in found.items()}
        counted_samples = {tp: taken for tp, taken in found.items() if tp in counts}
        return Trends(trends, total_trend(totals), hot_partitions(counted_samples), counts)

    def verdict(self, group: str) -> Verdict:
        """Returns the same verdict as :meth:`trends`, with less work."""
        with self._lock:
            ring = self._rings.get(group) or _Ring()
            of_partitions = (verdict(ring.samples[tp]) for tp in ring.counts)
            return verdict_of_group(of_partitions, total_trend(ring.known_totals))


AT_ONCE = 20
"""The number of groups measured in one step of a round."""
MAX_LAGGING = 20


class LagRound:
    """Measures the lag of all groups in turn, a few at a time. Only one thread may call :meth:`step`.

    In a large cluster, most managed groups are at rest. The target of such a group lists its partitions and members, so
    only the target and the offsets are read, unless some of the offsets are of other topics.
    """

    def __init__(self, directory: GroupDirectory, log_ranges: LogRanges, service: LagService) -> None:
        self.measured: dict[str, tuple[int, LagTotal]] = {}
        """Group → the time when its lag was measured (ms since 1970), and the lag."""
        self.consumers: dict[str, Mapping[str, Contact | None]] = {}
        """The members of each measured group."""
        self.topics: dict[str, frozenset[str]] = {}
        """The topics of each measured group, also those that it no longer reads."""
        self.warnings_ms: dict[str, int] = {}
        """The thresholds of the groups that have one of their own."""
        self.furthest_behind: tuple[str, ...] = ()
        self.behind = 0
        """The number of groups with lag, or with unread records that are gone."""
        self.since_ms: int | None = None
        """The time when the oldest lag was measured (ms since 1970)."""
        self._directory = directory
        self._log_ranges = log_ranges
        self._service = service
        self._left: deque[str] = deque()

    def step(self, rows: Mapping[str, GroupRow], cluster: Cluster, resting: Callable[[str], bool] | None) -> bool:
        """Measures the next few groups of ``rows``. Adds a sample of each, unless ``resting`` is given, which says
        which groups are at rest: less is then read of these. Returns whether any group was measured."""
        if not self._left:
            self.measured = {name: found for name, found in self.measured.items() if name in rows}
            self.consumers = {name: found for name, found in self.consumers.items() if name in rows}
            self.topics = {name: found for name, found in self.topics.items() if name in rows}
            self.warnings_ms = {name: found for name, found in self.warnings_ms.items() if name in rows}
            self._left.extend(sorted(rows, key=lambda name: self.measured.get(name, (0,))[0]))
        taken = [self._left.popleft() for _ in range(min(AT_ONCE, len(self._left)))]
        now_ms = round(self._directory.store.clock.time() * 1000)
        at_rest = {name for name in taken if resting is not None and resting(name) and self._knows_members(name)}
        wanted = {name: rows[name].kind for name in taken if name in rows}
        measured, _ = self._directory.offsets(wanted, cluster, self._log_ranges, at_rest)
        judged = self._service.judged if resting is not None else self._service.sampled
        for one in judged(measured, now_ms):
            self.measured[one.group] = now_ms, LagTotal.of_rows(one.rows)
            before = self.consumers.get(one.group, {})
            self.consumers[one.group] = {
                name: contact if contact is not None else before.get(name) for name, contact in one.members.items()
            }
            self.topics[one.group] = frozenset(row.topic for row in one.rows)
            self.warnings_ms.pop(one.group, None)
            if one.warning_ms is not None:
                self.warnings_ms[one.group] = one.warning_ms
        self.since_ms = min((at for at, _ in self.measured.values()), default=None)
        behind = [(name, found) for name, (_, found) in self.measured.items() if found.lag or found.gone]
        self.behind = len(behind)
        self.furthest_behind = tuple(name for name, _ in nsmallest(MAX_LAGGING, behind, key=_largest_first))
        return bool(measured)

    def _knows_members(self, group: str) -> bool:
        """Returns whether each member's contact is known, which is not read of a group at rest."""
        return group in self.consumers and None not in self.consumers[group].values()

    @property
    def unknown(self) -> int:
        """The number of partitions whose lag is unknown."""
        return sum(found.lag_unknown for _, found in list(self.measured.values()))


def _largest_first(found: tuple[str, LagTotal]) -> tuple[int, int, str]:
    return -(found[1].lag or 0), -(found[1].gone or 0), found[0]
