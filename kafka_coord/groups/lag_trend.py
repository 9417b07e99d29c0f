"""Classifies the trend of a partition's lag by Burrow's rules and by the partition's owners. Does no I/O.

The rules come from Burrow's evaluator (``core/internal/evaluator/caching.go``). Burrow applies them to the last ten
commits, and this module to a window of samples. Burrow cannot see owners, so it calls a consumer stopped when it no
longer commits. Here, a partition is stopped if no one owned it, and stalled if its owner did not move its offset.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise

from kafka_coord.groups.group import Verdict
from kafka_coord.model import TopicPartition

WINDOW_MS = 120_000
"""The time that a verdict covers. A consumer that commits less often than this looks stalled."""
_LEAST_MS = WINDOW_MS // 4
"""If the samples cover less time and the time of the last commit is unknown, the only possible verdicts are "keeping
up", "rewound" and "unknown"."""
_LEAST_MOVES, _PATIENCE = 4, 4
"""A consumer whose offset has moved at least ``_LEAST_MOVES`` times counts as hung once its offset has not moved for
``_PATIENCE`` times the longest pause between moves. A consumer counts as behind only after at least ``_LEAST_MOVES``
moves since its lag was zero."""
POLL_MS = 300_000
"""How long a consumer may work on the records of one poll: the default of ``max.poll.interval.ms``."""
_LEAST_RECORDS = 100
"""If the window contains fewer new records, no partition is hot."""


@dataclass(frozen=True, slots=True)
class LagSample:
    """One partition at one moment (ms since 1970). ``committed`` and ``lag`` are ``None`` if unknown. ``still_ms`` is
    the time of its last commit or of its group's last rebalance, whichever is later, or ``None`` if the time of the
    commit is unknown. ``unread`` is set if it is unknown whether the lag holds any record. ``gone`` counts the offsets
    between the committed one and the start of the log. ``end`` is the log's end, or ``None`` if unknown."""

    at_ms: int
    committed: int | None
    lag: int | None
    owned: bool
    still_ms: int | None = None
    unread: bool = False
    gone: int = 0
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Trend:
    """The verdict on one partition, unchanged since at least ``since_ms`` (ms since 1970). ``growth_s`` is the rate at
    which the lag grows (records per second), or ``None`` if unknown. The owner of a stalled partition ``may_work`` on
    its records: it committed within :data:`POLL_MS`, and never often."""

    verdict: Verdict
    since_ms: int | None = None
    growth_s: float | None = None
    may_work: bool = False


@dataclass(frozen=True, slots=True)
class Hot:
    """A partition that receives most of its topic's new records. ``share`` is its fraction of the new records in all
    partitions with a known end and offset. ``records_s`` is its own rate per second. ``others`` is the number of the
    topic's other partitions."""

    partition: TopicPartition
    share: float
    records_s: float
    others: int


@dataclass(frozen=True, slots=True)
class Trends:
    """The trends of one group, for each of the ``partitions`` in the last sample and for their ``total`` lag.
    ``counts`` are the partitions that count in the verdict on the group. ``total`` is ``None`` unless the total lag
    grows."""

    partitions: Mapping[TopicPartition, Trend] = field(default_factory=dict)
    total: Trend | None = None
    hot: Sequence[Hot] = ()
    counts: Set[TopicPartition] = frozenset()

    @property
    def verdict(self) -> Verdict:
        """The worst verdict on a partition or on the total lag."""
        return verdict_of_group((self.partitions[tp].verdict for tp in self.counts), self.total)

    @property
    def unknown(self) -> int:
        """The number of partitions whose trend is unknown."""
        return sum(self.partitions[tp].verdict is Verdict.UNKNOWN for tp in self.counts)

    def of(self, topic: str, partition: int) -> Trend:
        return self.partitions.get(TopicPartition(topic, partition), Trend(Verdict.UNKNOWN))


def trend(samples: Sequence[LagSample]) -> Trend:
    """Returns the trend of one partition. ``samples`` are in chronological order. The verdict depends only on the
    samples in the window, and on how often the offset moved before it."""
    found = verdict(samples)
    if found in {Verdict.UNKNOWN, Verdict.KEEPING_UP}:
        return Trend(found)
    last = samples[-1]
    if found is Verdict.REWOUND:
        return Trend(found, next((b.at_ms for a, b in reversed(list(pairwise(samples))) if _is_back(a, b)), None))
    if found is Verdict.BEHIND:
        since = _began(_since_zero(samples), lambda old, new: (old.lag or 0) > (new.lag or 0))
        late = _since_zero(_window(samples))
        return Trend(found, min(since, late[0].at_ms), _growth_s(late))
    since = _began(samples, lambda old, new: old.committed != new.committed)
    growth_s = _growth_s(_window(samples))
    if last.still_ms is None:
        return Trend(found, since, growth_s)
    may_work = found is Verdict.STALLED and last.at_ms - last.still_ms < POLL_MS and not _hangs(samples)
    return Trend(found, min(since, last.still_ms), growth_s, may_work)


def total_trend(totals: Sequence[tuple[int, int]]) -> Trend | None:
    """Returns the trend of a whole group if its lag grows. ``totals`` are (ms since 1970, lag) in chronological order.
    A consumer may read its partitions in turn, so each partition catches up at times while the total lag grows."""
    window = [one for one in totals if one[0] > totals[-1][0] - WINDOW_MS]
    growth_s = _rate_s(window)
    lags = [lag for _, lag in window]
    if growth_s is None or 0 in lags or not _grew(lags):
        return None
    return Trend(Verdict.BEHIND, window[0][0], growth_s)


def verdict(samples: Sequence[LagSample]) -> Verdict:
    """Returns the same verdict as :func:`trend`, with less work."""
    return Verdict.STALLED if _hangs(samples) else _verdict(_window(samples))


def _window(samples: Sequence[LagSample], length_ms: int = WINDOW_MS) -> list[LagSample]:
    """Returns the last samples of the present log: if the end went back, the topic was made anew, or its log cut."""
    found, end = [], math.inf
    for one in reversed(samples):
        if one.at_ms <= samples[-1].at_ms - length_ms or (one.end or 0) > end:
            break
        end = end if one.end is None else one.end
        found.append(one)
    return found[::-1]


def _verdict(window: Sequence[LagSample]) -> Verdict:
    lags = [one.lag for one in window if one.lag is not None]
    offsets = [one.committed for one in window if one.committed is not None]
    if not lags or not offsets:
        return Verdict.UNKNOWN
    if 0 in lags:
        return Verdict.BEHIND if _fell_behind(_since_zero(window)) else Verdict.KEEPING_UP
    if any(later < earlier for earlier, later in pairwise(offsets)):
        return Verdict.REWOUND
    last = window[-1]
    moved = offsets[0] != offsets[-1]
    if not moved and last.still_ms is not None:
        seen = last.at_ms - last.still_ms >= WINDOW_MS
    else:
        seen = last.at_ms - window[0].at_ms >= _LEAST_MS
    if not seen:
        return Verdict.UNKNOWN
    if not moved and last.unread:
        return Verdict.UNKNOWN
    if not any(one.owned for one in window):
        return Verdict.STOPPED
    if not moved:
        return Verdict.STALLED if last.owned else Verdict.STOPPED
    return Verdict.BEHIND if _grows(lags) else Verdict.KEEPING_UP


def _hangs(samples: Sequence[LagSample]) -> bool:
    """Returns whether the partition's owner, which used to commit often, has stopped committing. This detects a hung
    consumer before it has gone a whole window without a commit. Burrow has no such rule."""
    last = samples[-1] if samples else None
    if last is None or not (last.owned and last.lag) or last.still_ms is None or last.unread:
        return False
    if last.at_ms - last.still_ms < _LEAST_MS:
        return False  # checked first, because this is the usual case and costs nothing
    seen = _window(samples, 2 * WINDOW_MS)
    moves = _moves(seen)
    if len(moves) < _LEAST_MOVES:
        return False
    still_ms = last.at_ms - max(last.still_ms, moves[-1], _since_zero(seen)[0].at_ms)
    return still_ms >= max(_LEAST_MS, _PATIENCE * max(later - earlier for earlier, later in pairwise(moves)))


def _fell_behind(late: Sequence[LagSample]) -> bool:
    """Returns whether the partition has fallen behind since its lag was zero. A consumer that seldom commits does not
    count as behind: its lag is always large before a commit."""
    lags = [one.lag for one in late if one.lag is not None]
    covered = bool(late) and late[-1].owned and late[-1].at_ms - late[0].at_ms >= _LEAST_MS
    return covered and len(_moves(late)) >= _LEAST_MOVES and _grows(lags)


def _since_zero(window: Sequence[LagSample]) -> Sequence[LagSample]:
    return next((window[at + 1 :] for at in reversed(range(len(window))) if window[at].lag == 0), window)


def _moves(samples: Sequence[LagSample]) -> list[int]:
    """Returns the times of the samples whose offset differs from the previous sample's."""
    return [new.at_ms for old, new in pairwise(samples) if old.committed != new.committed]


def _grows(lags: Sequence[int]) -> bool:
    return all(later >= earlier for earlier, later in pairwise(lags)) or _grew(lags)


def _grew(lags: Sequence[int]) -> bool:
    """Returns whether every lag in the last third of ``lags`` is larger than every lag in the first third. Burrow
    measures at commits, so it does not need this rule. Here, samples are taken between commits, so even a
    growing lag shrinks at times."""
    third = max(1, len(lags) // 3)
    return max(lags[:third]) < min(lags[-third:])


def _is_back(old: LagSample, new: LagSample) -> bool:
    return old.committed is not None and new.committed is not None and new.committed < old.committed


def _began(samples: Sequence[LagSample], ends: Callable[[LagSample, LagSample], bool]) -> int:
    """Returns the time of the first sample in the current run. ``ends`` returns whether a run ends between two
    samples."""
    began = samples[-1].at_ms
    for old, new in reversed(list(pairwise(samples))):
        if ends(old, new):
            break
        began = old.at_ms
    return began


def _growth_s(window: Sequence[LagSample]) -> float | None:
    return _rate_s([(one.at_ms, one.lag) for one in window if one.lag is not None])


def _rate_s(points: Sequence[tuple[int, int]]) -> float | None:
    if not points or points[-1][0] - points[0][0] < _LEAST_MS:
        return None
    return 1000 * (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])


def hot_partitions(samples: Mapping[TopicPartition, Sequence[LagSample]]) -> list[Hot]:
    """Returns the partitions that receive most of their topic's new records. A topic's only partition is never
    hot. The threshold is halfway between an equal share and all records: 3/4 for two partitions, 5/8 for four."""
    new: dict[str, dict[int, tuple[int, float]]] = {}
    of_topic = Counter(tp.topic for tp in samples)
    for tp, taken in samples.items():
        ends = [
            (one.at_ms, one.committed + one.gone + one.lag)
            for one in _window(taken)
            if one.committed is not None and one.lag is not None
        ]
        rate = _rate_s(ends)
        if rate is not None:
            # the end goes back when offsets turn out to hold no record
            new.setdefault(tp.topic, {})[tp.partition] = max(0, ends[-1][1] - ends[0][1]), rate
    found = []
    for topic, partitions in new.items():
        total = sum(records for records, _ in partitions.values())
        for partition, (records, rate) in partitions.items():
            if len(partitions) > 1 and total >= _LEAST_RECORDS and records / total > (1 + 1 / len(partitions)) / 2:
                found.append(Hot(TopicPartition(topic, partition), records / total, rate, of_topic[topic] - 1))
    return found


def verdict_of_group(partitions: Iterable[Verdict], total: Trend | None) -> Verdict:
    """Returns the worst verdict, or unknown if there are no partitions."""
    order = list(Verdict)
    verdicts = [*partitions, *((total.verdict,) if total is not None else ())]
    return max(verdicts, key=order.index, default=Verdict.UNKNOWN)


def tolerated(found: Verdict, lag_s: float | None, warning_ms: int) -> Verdict:
    """Returns the verdict where lag is no news before its oldest record has waited for ``warning_ms``. An unknown age
    (``lag_s``) excuses nothing."""
    young = lag_s is not None and 1000 * lag_s < warning_ms
    return Verdict.KEEPING_UP if found is Verdict.BEHIND and young else found


OLDEST_MS = 1_293_840_000_000
"""The beginning of 2011, when Kafka was published. No record is older, so a clock that says so is wrong."""
CLOCKS_DIFFER_MS = 5_000
"""A record whose timestamp lies this far in the future at most is new. If it lies further, its clock is wrong."""
_MOST_TIMES = 1_000
"""How many times the sampled time a rate is projected into the past."""


def age_by_timestamp(timestamp_ms: int | None, now_ms: int) -> float | None:
    """Returns how old a record is (s), or ``None`` if the timestamp cannot be right: -1, 1970, the future."""
    if timestamp_ms is None or not OLDEST_MS <= timestamp_ms <= now_ms + CLOCKS_DIFFER_MS:
        return None
    return max(0, now_ms - timestamp_ms) / 1000


def age_by_rate(ends: Sequence[tuple[int, int]], offset: int, now_ms: int) -> float | None:
    """Returns how long ago (s) the record at ``offset`` was written, or ``None`` if the samples do not tell. ``ends``
    are (ms since 1970, end of the log) in chronological order.

    As in Kafka Lag Exporter, a time between two samples is interpolated. If all samples are newer than the record,
    their mean rate is projected into the past, for a bounded time."""
    newer: tuple[int, int] | None = None
    for at, end in reversed(ends):
        if end <= offset:
            if newer is None:
                return 0.0
            written = at + (newer[0] - at) * (offset + 1 - end) / (newer[1] - end)
            return max(0.0, now_ms - written) / 1000
        newer = at, end
    rate_s = _rate_s(ends)
    if not rate_s or rate_s < 0:
        return None
    age_s = (now_ms - ends[0][0]) / 1000 + (ends[0][1] - offset) / rate_s
    return age_s if 1000 * age_s <= _MOST_TIMES * (ends[-1][0] - ends[0][0]) else None
