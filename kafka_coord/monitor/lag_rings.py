"""Keeps a bounded number of lag samples for all groups, so that a trend is available immediately."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from kafka_coord.groups.group import LagTotal, OffsetRow, Verdict, counted
from kafka_coord.model import TopicPartition
from kafka_coord.monitor.lag_trend import (
    LagSample,
    Trends,
    hot_partitions,
    total_trend,
    trend,
    verdict,
    verdict_of_group,
)
from kafka_coord.monitor.remainders import Remainders

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


class LagRings:
    """The recent lag samples of every group. Thread-safe: several writers (an open page, the metrics) may sample the
    same group. ``remainders`` finds out which offsets hold no record; without it, every offset counts as a record."""

    def __init__(self, most_samples: int = MAX_SAMPLES, remainders: Remainders | None = None) -> None:
        self._remainders = remainders
        self._lock = threading.Lock()
        self._most = most_samples
        self._size = 0
        self._rings: OrderedDict[str, _Ring] = OrderedDict()

    def judged(self, group: str, rows: Sequence[OffsetRow], now_ms: int) -> tuple[OffsetRow, ...]:
        """Returns the group's rows with a lag that counts only from the next record on. May read from the brokers."""
        return tuple(rows) if self._remainders is None else self._remainders.judged(group, rows, now_ms)

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
            ring.totals.append((now_ms, total.lag, total.unknown, total.gone))
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
                taken.append(LagSample(now_ms, row.committed_offset, row.lag, owned, still_ms, row.unread, gone))
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
