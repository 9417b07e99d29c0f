"""Tests of the lag in one partition."""

from __future__ import annotations

import pytest

from kafka_coord.model.offsets import Lag, LogRange, gone_text, lag_of


@pytest.mark.parametrize(
    ("committed", "log", "expected"),
    [
        pytest.param(40, LogRange(0, 100), Lag(60, 0), id="nothing was deleted"),
        pytest.param(40, LogRange(40, 100), Lag(60, 0), id="only what was read was deleted"),
        pytest.param(40, LogRange(70, 100), Lag(30, 30), id="some unread records were deleted"),
        pytest.param(40, LogRange(100, 100), Lag(0, 60), id="all were deleted"),
        pytest.param(100, LogRange(100, 100), Lag(0, 0), id="all were read, then deleted"),
        pytest.param(120, LogRange(0, 100), Lag(0, 0), id="the log was truncated"),
        pytest.param(40, LogRange(101, 100), Lag(0, 60), id="the start moved after the end was read"),
        pytest.param(None, LogRange(0, 100), None, id="nothing is committed"),
        pytest.param(40, None, None, id="the log is unknown"),
    ],
)
def test_the_lag_counts_only_records_that_the_log_still_holds(
    committed: int | None, log: LogRange | None, expected: Lag | None
) -> None:
    assert lag_of(committed, log) == expected


def test_the_sentence_about_deleted_records() -> None:
    assert gone_text(1) == "1 unread record is gone"
    assert gone_text(1_200) == "1,200 unread records are gone"
