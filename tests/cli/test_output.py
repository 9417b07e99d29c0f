"""Tests of output to pipes and in tsv, and of protection against hostile text."""

from __future__ import annotations

import pytest

from kafka_coord.cli.output import Section, cell, clean, columns, duration, plain_lines, tsv_lines
from kafka_coord.groups.group import iso_time

ROWS = [{"name": "c1", "lag": 5, "owned": {"flights": "0-3"}}, {"name": "c22", "lag": None, "owned": {}}]
COLUMNS = columns("name #lag owned")


def test_a_pipe_gets_aligned_columns_and_a_dash_for_a_missing_value() -> None:
    assert list(plain_lines([Section("members", COLUMNS, ROWS)])) == [
        "NAME  LAG  OWNED",
        "c1      5  flights[0-3]",
        "c22     -  -",
    ]


def test_tsv_has_a_heading_and_empty_cells_for_missing_values() -> None:
    assert list(tsv_lines([Section("members", COLUMNS, ROWS)])) == [
        "name\tlag\towned",
        "c1\t5\tflights[0-3]",
        "c22\t\t-",
    ]


def test_several_sections_are_separated() -> None:
    sections = [Section("a", COLUMNS[:1], ROWS[:1]), Section("b", COLUMNS[:1], [], empty="nobody")]
    assert list(tsv_lines(sections)) == ["# a", "name", "c1", "", "# b", "name"]
    assert list(plain_lines(sections)) == ["NAME", "c1", "", "b: nobody"]


def test_text_from_znodes_cannot_control_a_terminal_or_break_a_line() -> None:
    hostile = "\x1b[2J\x07evil\nline\ttab\u202e"
    shown = clean(hostile)
    assert shown.isprintable()
    assert "evil\\nline\\ttab" in shown
    (_, line) = tsv_lines([Section("a", COLUMNS[:1], [{"name": hostile}])])
    assert line.isprintable()


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (4_200, "4.2 s"),
        (200_000, "3 min 20 s"),
        (7_500_000, "2 h 5 min"),
        (273_600_000, "3 d 4 h"),
    ],
)
def test_durations_are_readable(ms: int, shown: str) -> None:
    assert duration(ms) == shown


@pytest.mark.parametrize("ms", [None, 0, 1 << 62, -(1 << 62)])
def test_a_time_outside_of_the_calendar_is_shown_as_missing(ms: int | None) -> None:
    assert iso_time(ms) is None


def test_times_are_utc() -> None:
    assert iso_time(1_732_060_800_123) == "2024-11-20T00:00:00.123Z"


def test_booleans_are_shown_as_words() -> None:
    assert [cell(True), cell(False), cell(None), cell([1, 2])] == ["yes", "no", "-", "1, 2"]
