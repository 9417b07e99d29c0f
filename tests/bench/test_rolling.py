"""The bench of rolling restarts: how journals are read and judged, and a small run of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kafka_coord.dev.bench.rolling.java_client import java_warnings
from kafka_coord.dev.bench.rolling.journal import Figures, Note, What, figures, line_of
from kafka_coord.dev.bench.rolling.run import JAVA, Procedure, bars
from tests.cli.running import run

KAFKA = Figures(2.0, 100, 1.0, 0, 0, 10)
TOGETHER = Figures(2.4, 100, 1.0, 0, 0, 9)


def note(at: float, what: What, rest: object = "") -> Note:
    return Note(at, what, str(rest))


def test_a_line_is_read_as_it_was_written() -> None:
    line = line_of(1_500_000_000, What.WARNED, "ERROR kafka\n  gone")
    assert Note.parse(line.rstrip("\n")) == note(1.5, What.WARNED, "ERROR kafka gone")


def test_the_longest_pause_is_that_of_one_partition_and_may_last_until_the_end() -> None:
    notes = [note(at, What.RECORD, 0) for at in (0, 1, 2, 3, 4)] + [note(at, What.RECORD, 1) for at in (0.5, 1.5)]
    assert figures(notes, 0, 4).longest_pause_s == 2.5
    assert figures(notes, 0, 2).longest_pause_s == 1.0
    assert figures([], 0, 2).longest_pause_s == 2


def test_only_what_happens_during_the_restarts_counts() -> None:
    notes = [note(at, what, 7) for what in (What.FAILED, What.ASSIGNED, What.WARNED) for at in (1.0, 2.0)]
    found = figures([*notes, note(2.0, What.COMMITTED, 3_000_000_000)], 1.5, 3)
    assert (found.failed_commits, found.rebalances, found.warnings) == (1, 1, 1)
    assert (found.commits, found.slowest_commit_s) == (1, 3.0)


def test_javas_warnings_are_read_from_its_log(tmp_path: Path) -> None:
    log = tmp_path / "java.log"
    log.write_text("1700000000000 INFO A fine\n1700000000000 WARN B bad\n    at x.y\n1700000000001 ERROR C worse\n")
    assert [(one.what, one.rest) for one in java_warnings(log)] == [(What.WARNED, "B bad"), (What.WARNED, "C worse")]


@pytest.mark.parametrize(
    ("found", "missed"),
    [
        (TOGETHER, []),
        (replace(TOGETHER, longest_pause_s=2.6), ["longest pause"]),
        (replace(TOGETHER, failed_commits=1), ["failed commit calls"]),
        (replace(TOGETHER, rebalances=1), ["rebalances"]),
        (replace(TOGETHER, warnings=11), [f"warnings per closed connection, {JAVA}"]),
    ],
)
def test_the_brokers_own_restart_is_the_bar(found: Figures, missed: list[str]) -> None:
    judged = bars([(Procedure.BROKERS, JAVA, KAFKA, 4), (Procedure.TOGETHER, JAVA, found, 4)])
    assert [one.name for one in judged if not one.met] == missed


def test_without_the_brokers_own_restart_nothing_is_judged() -> None:
    assert bars([(Procedure.TOGETHER, JAVA, TOGETHER, 4)]) == []


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.zookeeper
def test_a_small_run_measures_both_procedures(tmp_path: Path) -> None:
    ran = run("bench", "rolling", "--smoke", "--dir", str(tmp_path), "-o", "json")
    assert ran.code == 0, ran.err
    rows = ran.json()["clients"]
    assert [(row["procedure"], row["library"]) for row in rows] == [
        ("brokers", "confluent-kafka"),
        ("together", "confluent-kafka"),
    ]
    assert all(row["commits"] > 0 and row["closed_connections"] > 0 for row in rows)
    assert all(row["rebalances"] == 0 for row in rows)
