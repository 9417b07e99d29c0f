"""Tests of the next record that a group has not read: of lag without records, and of the age of lag. A scripted probe
stands for the brokers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from kafka_coord.groups.group import NOT_SUBSCRIBED, AgeBy, LagTotal, OffsetRow, Time, Verdict
from kafka_coord.groups.lag import LagService
from kafka_coord.groups.lag_trend import WINDOW_MS
from kafka_coord.groups.next_records import STILL_MS, Next, NextRecords
from kafka_coord.groups.verbs import GroupOffsets
from kafka_coord.model import GroupKind, TopicPartition
from kafka_coord.monitor.doctor.groups import Lags, check_lag

TP = TopicPartition("t", 0)
OLD_MS = 10 * WINDOW_MS
"""When the last commit was made."""
NOW_MS = 20 * WINDOW_MS


def row(committed: int = 3, end: int = 5_005, committed_ms: int | None = OLD_MS) -> OffsetRow:
    return OffsetRow(
        topic="t",
        partition=0,
        owner="c1",
        holding="owned",
        committed_offset=committed,
        committed_ms=Time.of(committed_ms),
        end_offset=end,
        lag=end - committed,
    )


class Log:
    """A log whose next offset with a record, or whose end, is known. ``None`` means that it may not be read."""

    def __init__(self, found: Next | None) -> None:
        self.found = found
        self.asked: list[Mapping[TopicPartition, int]] = []
        self.in_time = True

    def __call__(self, wanted: Mapping[TopicPartition, int], _: float) -> Mapping[TopicPartition, Next | None]:
        self.asked.append(wanted)
        return dict.fromkeys(wanted, self.found) if self.in_time else {}


def read(records: NextRecords, rows: list[OffsetRow], now_ms: int) -> tuple[OffsetRow, ...]:
    return records.read([("g", rows)], now_ms)[0]


def judged_as(log: Log, found: OffsetRow) -> tuple[OffsetRow, Verdict, list[str]]:
    """The row, the verdict, and the doctor's sentences."""
    service = LagService(next_records=NextRecords(log))
    (one,) = service.sampled([GroupOffsets("g", GroupKind.MANAGED, (found,), 0, {})], NOW_MS)
    (seen,) = one.rows
    findings = [one.what + one.todo for one in check_lag(Lags("g", [seen], service.trends("g"), {"c1": ""}), NOW_MS)]
    return seen, service.verdict("g"), findings


def test_a_remainder_of_markers_is_no_lag():
    seen, verdict, findings = judged_as(Log(Next(5_005, is_record=False)), row())
    assert (seen.lag, verdict, findings) == (0, Verdict.KEEPING_UP, [])


def test_a_record_behind_a_marker_is_lag_and_its_consumer_is_stuck():
    seen, verdict, findings = judged_as(Log(Next(5_004, is_record=True)), row())
    assert (seen.lag, verdict) == (1, Verdict.STALLED)
    assert "stuck" in findings[0]


@pytest.mark.parametrize("in_time", [True, False])
def test_a_remainder_that_cannot_be_read_is_not_called_stuck(in_time: bool):
    log = Log(None)
    log.in_time = in_time
    seen, verdict, findings = judged_as(log, row())
    assert (seen.lag, verdict) == (5_002, Verdict.UNKNOWN)
    assert len(findings) == 1
    assert "stuck" not in findings[0]
    assert "READ" in findings[0]


def test_an_open_transaction_is_not_called_stuck():
    seen, verdict, _ = judged_as(Log(Next(5_000, is_record=False)), row())
    assert (seen.lag, verdict) == (5, Verdict.UNKNOWN)


def test_a_remainder_is_read_from_the_first_record_that_the_log_still_holds():
    log = Log(Next(5_004, is_record=True))
    deleted = replace(row(), lag=105, gone=4_897, start_offset=4_900)
    seen, verdict, _ = judged_as(log, deleted)
    assert log.asked == [{TP: 4_900}]
    assert (seen.lag, seen.gone, verdict) == (1, 4_897, Verdict.STALLED)


def test_only_partitions_that_lag_and_count_are_read():
    log = Log(Next(3, is_record=True))
    rows = [row(5_005), replace(row(), lag=None), replace(row(), holding=NOT_SUBSCRIBED)]
    assert read(NextRecords(log), rows, NOW_MS) == tuple(rows)
    assert log.asked == []


TODAY_MS = 1_800_000_000_000
NEW = Next(3, is_record=True, timestamp_ms=TODAY_MS - 61_500)


@pytest.mark.parametrize(
    ("timestamp_ms", "age_s"),
    [
        (TODAY_MS - 61_500, 61.5),
        (TODAY_MS + 3_000, 0.0),
        (TODAY_MS + 60_000, None),
        (-1, None),
        (0, None),
        (86_400_000, None),
        (None, None),
    ],
)
def test_the_next_records_timestamp_tells_the_age_unless_its_clock_is_wrong(timestamp_ms: int | None, age_s: float):
    (seen,) = read(NextRecords(Log(Next(3, True, timestamp_ms))), [row()], TODAY_MS)
    assert (seen.lag_s, seen.lag_s_by) == (age_s, None if age_s is None else AgeBy.TIMESTAMP)


@pytest.mark.parametrize("found", [None, Next(3, True, -1), Next(3, True, NOW_MS + 86_400_000)])
def test_without_a_timestamp_the_rate_of_the_log_tells_the_age(found: Next | None):
    service = LagService(next_records=NextRecords(Log(found)))
    for seconds in range(0, 61, 10):
        end = 1_000 + 100 * seconds  # the log grows by 100 records a second
        group = GroupOffsets("g", GroupKind.MANAGED, (row(1_000 + 100 * 20, end),), 0, {})
        (one,) = service.sampled([group], NOW_MS + seconds * 1_000) if end > 3_000 else (group,)
        if end <= 3_000:
            service.add("g", NOW_MS + seconds * 1_000, [replace(row(end, end), lag=0)])
    (seen,) = one.rows
    assert seen.lag_s == pytest.approx(40, abs=0.2)
    assert seen.lag_s_by is AgeBy.RATE


def test_an_unknown_age_is_no_age_and_a_group_has_none_while_one_of_its_partitions_has_none():
    service = LagService()
    other = replace(row(), partition=1)
    (one,) = service.judged([GroupOffsets("g", GroupKind.MANAGED, (row(), other, row(9, 9)), 0, {})], NOW_MS)
    assert [(seen.lag_s, seen.lag_s_by) for seen in one.rows] == [(None, None), (None, None), (0.0, None)]
    known = replace(row(), lag_s=12.0, lag_s_by=AgeBy.RATE)
    assert LagTotal.of_rows([known, other]).lag_s is None
    total = LagTotal.of_rows([known, replace(other, lag_s=70.0, lag_s_by=AgeBy.TIMESTAMP), row(9, 9)])
    assert total.lag_s is None, "whether that partition's age is 0 is for the service to say"
    total = LagTotal.of_rows([known, replace(other, lag_s=70.0, lag_s_by=AgeBy.TIMESTAMP), replace(other, lag=None)])
    assert (total.lag_s, total.lag_s_by, total.lag_unknown) == (70.0, AgeBy.TIMESTAMP, 1)


def test_groups_that_wait_at_different_offsets_of_a_partition_are_read_one_after_the_other():
    log = Log(NEW)
    records = NextRecords(log)
    records.read([("a", [row(3)]), ("b", [row(3)]), ("c", [row(90)])], NOW_MS)
    assert log.asked == [{TP: 90}, {TP: 3}]


def test_a_record_found_further_on_waits_for_every_group_before_it():
    class Slow(Log):
        def __call__(self, wanted: Mapping[TopicPartition, int], _: float) -> Mapping[TopicPartition, Next | None]:
            return super().__call__(wanted, _) if not self.asked else {}

    log = Slow(Next(4_000, is_record=True))
    found = NextRecords(log).read([(f"g{at}", [row(at)]) for at in (3, 500, 4_000)], NOW_MS)
    assert log.asked == [{TP: 4_000}]
    assert [bool(one.unread) for (one,) in found] == [False] * 3


def test_the_lags_that_are_largest_are_read_and_no_more_than_the_limit():
    log = Log(NEW)
    rows = [replace(row(end=10 + number), partition=number) for number in range(9)]
    NextRecords(log, most=2).read([("g", rows)], NOW_MS)
    assert [{tp.partition for tp in wanted} for wanted in log.asked] == [{7, 8}]


def test_a_command_shows_the_lag_as_kafkas_tools_do_and_its_age():
    log = Log(Next(5_005, is_record=False))
    (seen,) = read(NextRecords(log, corrects=False), [row()], NOW_MS)
    assert (seen.lag, seen.lag_s) == (5_002, 0.0), "no record waits"


def test_a_group_whose_commits_have_no_time_is_unread_once_its_offset_has_stood_still():
    records = NextRecords(Log(None))
    still = row(committed_ms=None)
    assert not read(records, [still], NOW_MS)[0].unread
    assert read(records, [still], NOW_MS + STILL_MS)[0].unread


def test_what_was_found_is_not_read_again_until_the_log_grows():
    log = Log(Next(5_005, is_record=False))
    records = NextRecords(log)
    for _ in range(3):
        assert read(records, [row()], NOW_MS)[0].lag == 0
    assert len(log.asked) == 1
    log.found = Next(5_006, is_record=True)
    assert read(records, [row(end=5_010)], NOW_MS)[0].lag == 4
    assert len(log.asked) == 2


def test_a_refusal_is_not_asked_for_again_at_once():
    log = Log(None)
    records = NextRecords(log)
    for _ in range(3):
        assert read(records, [row()], NOW_MS)[0].unread
    assert len(log.asked) == 1


def test_what_was_found_in_a_topic_does_not_hold_for_a_shorter_one_of_the_same_name():
    log = Log(Next(5_005, is_record=False))
    records = NextRecords(log)
    read(records, [row()], NOW_MS)
    log.found = Next(10, is_record=True)
    assert read(records, [row(10, 100)], NOW_MS)[0].lag == 90
