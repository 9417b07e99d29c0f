"""Tests of output to pipes and in tsv, and of protection against hostile text."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import click
import pytest
from rich.console import Console

from kafka_coord.cli.output import (
    Section,
    cell,
    clean,
    columns,
    csv_lines,
    duration,
    fitted,
    plain_lines,
    rich_table,
    stacked,
    tsv_lines,
)
from kafka_coord.groups.group import iso_time

ROWS = [{"name": "c1", "lag": 5, "owned": {"flights": "0-3"}}, {"name": "c22", "lag": None, "owned": {}}]
COLUMNS = columns("name #lag owned")


def test_a_pipe_gets_aligned_columns_and_a_dash_for_a_missing_value() -> None:
    assert list(plain_lines([Section("members", COLUMNS, ROWS)])) == [
        "NAME  LAG  OWNED",
        "c1      5  flights[0-3]",
        "c22     -  -",
    ]


def test_csv_quotes_what_needs_it_and_escapes_what_could_control_a_terminal() -> None:
    rows = [{"name": 'a,"b"', "lag": 5}, {"name": "line\nbreak\x1b[31m", "lag": None}]
    lines = list(csv_lines([Section("groups", columns("name #lag"), rows)]))
    assert lines == ["name,lag", '"a,""b""",5', "line\\nbreak\\u{1b}[31m,"]
    assert list(csv.reader(lines))[1] == ['a,"b"', "5"]


def test_no_spreadsheet_runs_a_cell_that_somebody_else_has_written() -> None:
    rows = [{"name": "=cmd|x", "lag": -5, "owned": ["+1", "-2"]}, {"name": "a=b", "lag": None, "owned": {"-t": "0"}}]
    sections = [Section("groups", columns("name #lag owned"), rows)]
    assert list(csv_lines(sections)) == ["name,lag,owned", "'=cmd|x,-5,\"'+1, -2\"", "a=b,,'-t[0]"]
    assert list(tsv_lines(sections))[1:] == ["'=cmd|x\t-5\t'+1, -2", "a=b\t\t'-t[0]"]


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


LONG = "payments-" + "x" * 182 + "-of-today"
GROUPS = Section(
    "groups",
    columns("group state #generation #members #partitions assignor #pending #unreadable kind #coordinator #lag"),
    [
        {"group": "delays", "state": "Stable", "generation": 12, "members": 3, "assignor": "sticky", "lag": 50_000},
        {"group": LONG, "state": "Rebalancing", "partitions": 900, "kind": "client-assigned", "coordinator": 2},
    ],
)


def lines(section: Section, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    console.print(rich_table(section, width))
    return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]  # type: ignore[attr-defined]


def test_the_least_important_columns_go_first_and_the_table_says_which() -> None:
    section = replace(GROUPS, rows=GROUPS.rows[:1])
    wide, narrow = lines(section, 200), lines(section, 80)
    assert wide[0].split() == [one.heading for one in section.columns]
    assert narrow[0].split() == ["GROUP", "STATE", "MEMBERS", "PARTITIONS", "ASSIGNOR", "PENDING", "KIND", "LAG"]
    assert narrow[-1] == "not shown at this width: COORDINATOR, UNREADABLE, GENERATION"
    assert max(map(len, narrow)) <= 80
    assert not any("not shown" in line for line in wide)


@pytest.mark.parametrize("width", [60, 80, 132])
def test_a_long_name_is_shortened_in_its_middle_and_no_name_is_broken(width: int) -> None:
    shown = lines(GROUPS, width)
    assert max(map(len, shown)) <= width
    (long,) = (line for line in shown if "payments" in line or "pay" in line)
    begin, _, end = long.split()[0].partition("…")
    assert LONG.startswith(begin)
    assert LONG.endswith(end)
    assert len(begin) >= len(end) > 4
    assert "Rebalancing" in long
    assert "PARTITIONS" in shown[0] or width < 80, "a long name does not push out all columns"
    assert any(line.endswith(" 50000") for line in shown)
    assert shown[2].startswith(" delays ")


def test_times_become_short_if_the_table_is_too_wide() -> None:
    section = Section("x", columns("at group reason"), [
        {"at": "2026-11-29T12:00:07.123Z", "group": "delays", "reason": "member c1 joined"},
        {"at": "2026-11-28T12:00:07.123Z", "group": "delays", "reason": "member c1 joined"},
        {"at": "2025-11-28T12:00:07.123Z", "group": "delays", "reason": "member c1 joined"},
    ])  # fmt: skip
    _, wide, _ = fitted(section, 200, "2026-11-29")
    assert wide[0][0] == "2026-11-29T12:00:07.123Z"
    shown, short, _ = fitted(section, 50, "2026-11-29")
    assert [row[0] for row in short] == ["12:00:07Z", "11-28 12:00Z", "2025-11-28"]
    assert [one.key for one in shown] == ["at", "group", "reason"]


def test_a_narrow_terminal_gets_paragraphs_whose_commands_can_be_copied() -> None:
    command = f"kafka-coord groups reset-offsets {LONG} --all-topics --undo"
    shown = list(
        stacked(
            [
                {"severity": "warning", "what": f"group {LONG} is late " * 3, "todo": f"to undo it: {command}"},
                {"severity": "info", "what": "all is well", "todo": None},
            ],
            80,
            ("severity", "what"),
            "todo",
        )
    )
    assert shown[-3:-1] == ["  → to undo it:", f"    {command}"]
    assert click.unstyle(shown[-1]) == "info  all is well"
    assert max(len(click.unstyle(line)) for line in shown if command not in line) <= 80
    assert sum("payments-" in line and "…" in line for line in shown) == 3, "a name is shortened, and never broken"


def test_prose_continues_in_another_line_but_its_words_stay_whole() -> None:
    section = Section("x", columns("group owned"), [{"group": "delays", "owned": {"flights-of-today": "0-31", "a": 1}}])
    shown = lines(section, 36)
    assert "flights-of-today[0-31]" in shown[2]
    assert "a[1]" in shown[3]
    assert "…" in "".join(lines(section, 24)), "a word that is wider than the column is shortened"
