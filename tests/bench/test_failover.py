"""The bench of failovers: how it is judged, and a small run of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kafka_coord.dev.bench.failover.run import Ending, Failover, Idle, bars, tables
from tests.cli.running import run

FAILOVER = Failover(10_000, Ending.KILLED, 6_000.0, 4_000.0, 7_000.0, 0, 3.0)
IDLE = Idle(10_000, 9.0, 0, 800.0)
SMALL = Idle(1_000, 1.9, 0, 90.0)


def met(*failovers: Failover, idle: tuple[Idle, ...] = (IDLE, SMALL)) -> list[bool | None]:
    return [bar.met for bar in bars(failovers, idle)]


def test_the_worst_repeat_determines_the_verdict():
    assert met(FAILOVER, FAILOVER) == [True] * 5
    assert met(FAILOVER, replace(FAILOVER, looked_ms=5_001.0)) == [False, True, True, True, True]
    assert met(FAILOVER, replace(FAILOVER, rewritten=1, groups=10)) == [True, False, True, True, True]
    assert met(FAILOVER, idle=(replace(IDLE, peak_mib=1_025), SMALL)) == [True, True, False, True, True]
    assert met(FAILOVER, idle=(IDLE, replace(SMALL, cpu_percent=2.1, transactions=1))) == [True] * 3 + [False] * 2


def test_what_was_not_measured_meets_and_misses_nothing():
    assert met(replace(FAILOVER, groups=10), idle=()) == [None, True, None, None, None]


def test_stopped_and_killed_coordinators_are_reported_separately():
    clean = replace(FAILOVER, ending=Ending.CLEAN, elected_ms=90.0)
    failover, idle = tables([FAILOVER, clean, replace(clean, elected_ms=110.0)], [IDLE])
    assert [(row["ending"], row["n"], row["elected_p50_ms"]) for row in failover.rows] == [
        ("stopped", 2, 100.0),
        ("killed", 1, 6_000.0),
    ]
    assert idle.rows[0]["peak_mib"] == 800.0


@pytest.mark.zookeeper
def test_a_small_run_takes_every_group_over_and_rewrites_nothing(tmp_path: Path):
    found = run("bench", "failover", "--smoke", "--dir", str(tmp_path), "-o", "json").json()
    assert [(row["groups"], row["ending"], row["n"]) for row in found["failover"]] == [
        (5, "stopped", 1),
        (5, "killed", 1),
    ]
    assert all(row["rewritten"] == 0 for row in found["failover"])
    # by the time the test sees the election, the coordinator may have read all groups
    assert [row for row in found["failover"] if row["looked_p50_ms"] < 0 or row["member_p50_ms"] <= 0] == []
    assert all(row["elected_p50_ms"] > 0 for row in found["failover"])
    (idle,) = found["idle"]
    assert (idle["groups"], idle["peak_mib"] > 10) == (5, True)
    assert found["cold_start"][0]["all_stable_ms"] > 0
    assert found["bars"] == []
