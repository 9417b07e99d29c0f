"""Tests of the verdicts on a partition's lag, with tables like Burrow's (core/internal/evaluator/caching_test.go)."""

from __future__ import annotations

import pytest

from kafka_coord.groups.group import Verdict
from kafka_coord.groups.lag_trend import (
    WINDOW_MS,
    LagSample,
    Trend,
    age_by_rate,
    hot_partitions,
    tolerated,
    total_trend,
    trend,
    verdict,
    verdict_of_group,
)
from kafka_coord.model import TopicPartition


def samples(offsets: list[int | None], lags: list[int | None], owned: str = "") -> list[LagSample]:
    """Makes samples at intervals of 10 s. A ``-`` in ``owned`` stands for a sample without an owner."""
    marks = owned or "o" * len(offsets)
    rows = zip(offsets, lags, marks, strict=True)
    return [LagSample(at * 10_000, offset, lag, mark == "o") for at, (offset, lag, mark) in enumerate(rows)]


@pytest.mark.parametrize(
    ("offsets", "lags", "owned", "expected"),
    [
        pytest.param([], [], "", Verdict.UNKNOWN, id="nothing was seen"),
        pytest.param([None] * 5, [None] * 5, "", Verdict.UNKNOWN, id="nothing is committed"),
        pytest.param([1, 2, 3, 4, 5], [0, 4, 5, 6, 7], "", Verdict.KEEPING_UP, id="the lag was zero once"),
        pytest.param(
            [9, 9, 9, 9, 9], [0, 0, 0, 0, 0], "-----", Verdict.KEEPING_UP, id="nothing to read, nobody owns it"
        ),
        pytest.param([1, 2, 3, 4, 5], [9, 8, 9, 9, 9], "", Verdict.KEEPING_UP, id="the lag became smaller once"),
        pytest.param([1, 2, 3, 4, 5], [5, 6, 7, 8, 9], "", Verdict.BEHIND, id="it moves, the lag grows"),
        pytest.param([1, 2, 3, 4, 5], [5, 5, 5, 5, 5], "", Verdict.BEHIND, id="it moves, the lag stays"),
        pytest.param([1, 2, 3, 4, 5, 6], [10, 12, 11, 15, 14, 18], "", Verdict.BEHIND, id="the lag grows, unevenly"),
        pytest.param([1, 2, 3, 4, 5, 6], [18, 12, 11, 15, 14, 17], "", Verdict.KEEPING_UP, id="it goes up and down"),
        pytest.param([7, 8, 3, 4, 5], [5, 4, 9, 8, 7], "", Verdict.REWOUND, id="it was set back"),
        pytest.param([7, 3], [5, 9], "", Verdict.REWOUND, id="it was set back a moment ago"),
        pytest.param([4, 4, 4, 4, 4], [5, 5, 5, 5, 5], "", Verdict.STALLED, id="its owner does not move"),
        pytest.param([4, 4, 4, 4, 4], [9, 9, 9, 7, 7], "", Verdict.STALLED, id="the log lost records"),
        pytest.param([4, 4, 4, 4, 4], [5, 6, 7, 8, 9], "-----", Verdict.STOPPED, id="nobody owns it"),
        pytest.param(
            [4, 4, 4, 4, 4], [5, 6, 7, 8, 9], "ooo--", Verdict.STOPPED, id="it lost its owner and did not move"
        ),
        pytest.param([4, 4, 4, 4, 4], [5, 6, 7, 8, 9], "--ooo", Verdict.STALLED, id="its new owner does not move"),
        pytest.param([4, 4], [5, 6], "", Verdict.UNKNOWN, id="too early to say"),
        pytest.param([None, 4, 5, 6, 7], [None, 5, 6, 7, 8], "", Verdict.BEHIND, id="unknown ones do not count"),
    ],
)
def test_the_verdict_for_each_series_of_samples(
    offsets: list[int | None], lags: list[int | None], owned: str, expected: Verdict
) -> None:
    assert verdict(samples(offsets, lags, owned)) is expected


def test_samples_before_the_window_do_not_count() -> None:
    before = [LagSample(0, 100, 0, owned=True)]
    after = [LagSample(WINDOW_MS + at * 10_000, 200, 5, owned=True) for at in range(5)]
    assert verdict([*before, *after]) is Verdict.STALLED


def test_in_a_topic_that_was_made_anew_no_offset_counts_as_moved_back() -> None:
    before = [LagSample(at, 1_400 + at // 1_000, 100, owned=True, end=1_500 + at // 1_000) for at in (0, 10_000)]
    deleted = LagSample(20_000, None, None, owned=False)
    anew = [LagSample(at, at // 1_000, 9, owned=True, end=9 + at // 1_000) for at in range(30_000, 80_000, 10_000)]
    assert verdict([*before, deleted, *anew[:2]]) is Verdict.UNKNOWN
    assert verdict([*before, deleted, *anew]) is Verdict.BEHIND
    assert verdict([*anew, LagSample(90_000, 30, 99, owned=True, end=129)]) is Verdict.REWOUND


def test_a_groups_verdict_is_that_of_its_worst_partition() -> None:
    assert verdict_of_group([], None) is Verdict.UNKNOWN
    assert verdict_of_group([Verdict.KEEPING_UP], None) is Verdict.KEEPING_UP
    assert verdict_of_group([Verdict.UNKNOWN, Verdict.KEEPING_UP], None) is Verdict.UNKNOWN
    assert verdict_of_group([Verdict.UNKNOWN, Verdict.BEHIND], None) is Verdict.BEHIND
    assert verdict_of_group([Verdict.STOPPED, Verdict.BEHIND, Verdict.STALLED], None) is Verdict.STOPPED
    assert verdict_of_group([Verdict.KEEPING_UP], Trend(Verdict.BEHIND, 0, 1.0)) is Verdict.BEHIND


@pytest.mark.parametrize(
    ("found", "lag_s", "expected"),
    [
        (Verdict.BEHIND, 59.9, Verdict.KEEPING_UP),
        (Verdict.BEHIND, 60.0, Verdict.BEHIND),
        (Verdict.BEHIND, None, Verdict.BEHIND),
        (Verdict.STALLED, 1.0, Verdict.STALLED),
    ],
)
def test_lag_that_is_younger_than_the_threshold_is_not_behind(
    found: Verdict, lag_s: float | None, expected: Verdict
) -> None:
    assert tolerated(found, lag_s, 60_000) is expected


def test_the_trend_has_the_time_since_when_it_holds() -> None:
    assert trend(samples([3, 4, 4, 4, 4], [5, 5, 5, 5, 5])) == Trend(Verdict.BEHIND, 0, 0.0)
    assert trend(samples([4, 4, 4, 4, 4], [5, 5, 6, 7, 8])).since_ms == 0
    assert trend(samples([7, 8, 3, 4, 5], [5, 4, 9, 8, 7])).since_ms == 20_000
    growing = trend(samples([1, 2, 3, 4, 5], [100, 110, 120, 130, 140]))
    assert (growing.verdict, growing.growth_s) == (Verdict.BEHIND, 1.0)
    long_ago = LagSample(5_000_000, 4, 5, owned=True, still_ms=60_000)
    assert trend([long_ago]) == Trend(Verdict.STALLED, 60_000)


def every_5_s(offsets: list[int], lags: list[int], *, commits_every: int = 1) -> list[LagSample]:
    """Makes samples at intervals of 5 s. The consumer commits at every ``commits_every``-th sample."""
    found, committed, still_ms = [], 0, 0
    for number, (offset, lag) in enumerate(zip(offsets, lags, strict=True)):
        if offset != committed and number % commits_every == 0:
            committed, still_ms = offset, number * 5_000
        found.append(LagSample(number * 5_000, committed, lag, owned=True, still_ms=still_ms))
    return found


def test_a_consumer_that_committed_often_and_then_stopped_counts_as_stalled() -> None:
    """The consumer counts as stalled half a minute after its last commit, although its lag was zero in the window."""
    busy, hung = list(range(1, 13)), [12] * 40
    seen = every_5_s(busy + hung, [0] * 12 + list(range(1, 41)))
    assert verdict(seen[:17]) is Verdict.KEEPING_UP, "the consumer may take 25 s for a record"
    assert {verdict(seen[:end]) for end in range(19, len(seen) + 1)} == {Verdict.STALLED}, "without interruption"
    assert trend(seen[:19]).since_ms == 55_000


def test_a_consumer_that_commits_rarely_does_not_count_as_stalled_between_commits() -> None:
    busy = every_5_s(list(range(1, 49)), [number % 9 for number in range(48)], commits_every=9)
    assert {verdict(busy[:end]) for end in range(1, len(busy) + 1)} <= {Verdict.UNKNOWN, Verdict.KEEPING_UP}


def test_a_consumer_that_waited_for_records_does_not_count_as_stalled() -> None:
    offsets = list(range(1, 13)) + [12] * 20
    assert verdict(every_5_s(offsets, [0] * 28 + [3] * 4)) is Verdict.KEEPING_UP, "the records arrived only 15 s ago"
    rebalanced = every_5_s(offsets, [0] * 12 + [3] * 20)
    decided = [*rebalanced[:-1], LagSample(155_000, 12, 3, owned=True, still_ms=140_000)]
    assert verdict(decided) is not Verdict.STALLED, "the consumer may just have begun to read"


def test_a_consumer_counts_as_behind_half_a_minute_after_it_fell_behind() -> None:
    seen = every_5_s(list(range(1, 33)), [0] * 16 + list(range(10, 170, 10)))
    assert verdict(seen[:22]) is Verdict.KEEPING_UP
    assert trend(seen[:23]) == Trend(Verdict.BEHIND, 80_000, 2.0)
    catches_up = every_5_s(list(range(1, 33)), [0] * 16 + [90, 80, 70, 60, 50, 40, 30, 20] * 2)
    assert verdict(catches_up) is Verdict.KEEPING_UP


def test_a_consumer_that_committed_within_the_window_does_not_count_as_stalled() -> None:
    """If the consumer commits once a minute, its next commit may be due soon."""
    slow = [LagSample(at * 10_000, 4, 5, owned=True, still_ms=0) for at in range(7)]
    assert verdict(slow) is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("lags", "expected"),
    [
        pytest.param([10, 12, 11, 15, 14, 18], Verdict.BEHIND, id="it grows, unevenly"),
        pytest.param([10, 12, 11, 12, 10, 11], None, id="it goes up and down"),
        pytest.param([0, 12, 13, 14, 15, 16], None, id="there was none a moment ago"),
        pytest.param([10, 20], None, id="too early to say"),
    ],
)
def test_the_trend_of_a_whole_group(lags: list[int], expected: Verdict | None) -> None:
    found = total_trend([(at * 10_000, lag) for at, lag in enumerate(lags)])
    assert (found and found.verdict) is expected


def ended(*ends: int) -> list[LagSample]:
    return [LagSample(at * 10_000, 0, end, owned=True) for at, end in enumerate(ends)]


def test_a_partition_that_gets_most_of_the_records_is_hot() -> None:
    tp = [TopicPartition("flights", number) for number in range(4)]
    idle = ended(7, 7, 8, 8)
    (found,) = hot_partitions({tp[0]: idle, tp[1]: ended(0, 300, 600, 900), tp[2]: idle, tp[3]: []})
    assert (found.partition, found.others) == (tp[1], 3)
    assert found.share > 0.99
    assert found.records_s == 30.0
    even = ended(0, 300, 600, 900)
    assert hot_partitions(dict.fromkeys(tp, even)) == []
    assert hot_partitions({tp[0]: even}) == [], "there is no other partition to compare with"
    assert hot_partitions({tp[0]: ended(0, 1, 2, 3), tp[1]: idle}) == [], "there are too few records for a verdict"


def test_the_end_of_a_log_does_not_move_back_when_retention_deletes_records() -> None:
    """The consumer of partition 0 stands still while retention deletes half of the new records."""
    first, second = TopicPartition("flights", 0), TopicPartition("flights", 1)
    deleted = [LagSample(at * 10_000, 0, 50 * at, owned=True, gone=50 * at) for at in range(7)]
    read = [LagSample(at * 10_000, at, 0, owned=True) for at in range(7)]
    (hot,) = hot_partitions({first: deleted, second: read})
    assert (hot.partition, round(hot.records_s)) == (first, 10)


ENDS = [(0, 1_000), (60_000, 1_600), (120_000, 2_200)]
"""A log that grew by 10 records a second for two minutes."""


@pytest.mark.parametrize(
    ("offset", "age_s"),
    [
        pytest.param(2_200, 0.0, id="not written yet"),
        pytest.param(2_199, 0.0, id="the last record"),
        pytest.param(1_899, 30.0, id="between two samples"),
        pytest.param(1_599, 60.0, id="just before a sample"),
        pytest.param(400, 180.0, id="older than all samples"),
        pytest.param(-10_000_000, None, id="too far back to be projected"),
    ],
)
def test_the_age_of_a_record_follows_from_the_rate_of_its_log(offset: int, age_s: float | None):
    assert age_by_rate(ENDS, offset, 120_000) == age_s


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param([(0, 900)], id="one sample"),
        pytest.param([(0, 900), (5_000, 1_000)], id="too short a time"),
        pytest.param([(0, 900), (120_000, 900)], id="no new record"),
        pytest.param([(0, 900), (120_000, 700)], id="a log that was made anew"),
    ],
)
def test_the_age_is_unknown_while_the_log_shows_no_rate(ends: list[tuple[int, int]]):
    assert age_by_rate(ends, 100, 120_000) is None


def test_a_stalled_consumer_may_work_on_a_batch_for_five_minutes_unless_it_committed_often() -> None:
    """Like one that polls every four minutes."""

    def seen(still_s: int) -> list[LagSample]:
        return [LagSample(at * 10_000, 4, 5, True, at * 10_000 - still_s * 1_000) for at in range(5)]

    assert [trend(seen(still_s)).may_work for still_s in (130, 240, 299, 300, 900)] == [True, True, True, False, False]
    often = [LagSample(at * 5_000, min(at, 24), 5, True, min(at, 24) * 5_000) for at in range(50)]
    assert (trend(often).verdict, trend(often).may_work) == (Verdict.STALLED, False)
