"""Tests of the lag that consists of offsets without records. A scripted probe stands for the brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from kafka_coord.groups.group import OffsetRow, Verdict
from kafka_coord.groups.lag import STILL_MS, LagService, Next, Remainders
from kafka_coord.groups.lag_trend import WINDOW_MS
from kafka_coord.model import TopicPartition
from kafka_coord.monitor.doctor.lag import Lags, check_lag

TP = TopicPartition("t", 0)
OLD_MS = 10 * WINDOW_MS
"""When the last commit was made."""
NOW_MS = 20 * WINDOW_MS


def row(committed: int = 3, end: int = 5_005, committed_ms: int | None = OLD_MS) -> OffsetRow:
    return OffsetRow("t", 0, "c1", "owned", committed, end, end - committed, committed_ms)


class Log:
    """A log whose next offset with a record, or whose end, is known. ``None`` means that it may not be read."""

    def __init__(self, found: Next | None) -> None:
        self.found = found
        self.asked: list[Mapping[TopicPartition, int]] = []
        self.in_time = True

    def __call__(self, wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Next | None]:
        self.asked.append(wanted)
        return dict.fromkeys(wanted, self.found) if self.in_time else {}


def judged_as(log: Log, found: OffsetRow) -> tuple[OffsetRow, Verdict, list[str]]:
    """The row, the verdict, and the doctor's sentences."""
    service = LagService(remainders=Remainders(log))
    (seen,) = service.judged("g", [found], NOW_MS)
    service.add("g", NOW_MS, [seen])
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


def test_only_partitions_that_stand_still_are_read():
    log = Log(Next(5_005, is_record=False))
    remainders = Remainders(log)
    assert remainders.judged("g", [row(committed_ms=NOW_MS - 1)], NOW_MS) == (row(committed_ms=NOW_MS - 1),)
    assert log.asked == []


def test_a_group_whose_commits_have_no_time_is_read_once_its_offset_has_stood_still():
    log = Log(Next(5_005, is_record=False))
    remainders = Remainders(log)
    still = row(committed_ms=None)
    assert remainders.judged("g", [still], NOW_MS)[0].lag == 5_002
    assert remainders.judged("g", [still], NOW_MS + STILL_MS)[0].lag == 0


def test_what_was_found_is_not_read_again_until_the_log_grows():
    log = Log(Next(5_005, is_record=False))
    remainders = Remainders(log)
    for _ in range(3):
        assert remainders.judged("g", [row()], NOW_MS)[0].lag == 0
    assert len(log.asked) == 1
    log.found = Next(5_006, is_record=True)
    assert remainders.judged("g", [row(end=5_010)], NOW_MS)[0].lag == 4
    assert len(log.asked) == 2


def test_a_refusal_is_not_asked_for_again_at_once():
    log = Log(None)
    remainders = Remainders(log)
    for _ in range(3):
        assert remainders.judged("g", [row()], NOW_MS)[0].unread
    assert len(log.asked) == 1


def test_what_was_found_in_a_topic_does_not_hold_for_a_shorter_one_of_the_same_name():
    log = Log(Next(5_005, is_record=False))
    remainders = Remainders(log)
    remainders.judged("g", [row()], NOW_MS)
    log.found = Next(10, is_record=True)
    assert remainders.judged("g", [row(10, 100)], NOW_MS)[0].lag == 90
