"""The bench of commits: the contents of its report, and how it is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_coord.dev.bench.offsets import Committing, bar, table
from tests.cli.running import run


def test_offsets_per_second_count_whole_commits():
    found = Committing(100, [2.0, 3.0, 4.0, 1.0], 0.5, 0.25, 0.1)
    (row,) = table([found]).rows
    assert row["offsets_per_s"] == 800
    assert row["commits_per_s"] == 8
    assert row["median_ms"] == 2.5
    assert row["client_cpu_percent"] == 50


@pytest.mark.parametrize(("seconds", "met"), [(1.0, True), (1.01, False)])
def test_the_bar_is_about_the_best_size(seconds: float, met: bool):
    slow, fast = Committing(1, [1.0] * 100, 1.0, 0, 0), Committing(1_000, [1.0] * 30, seconds, 0, 0)
    assert bar([slow, fast]).met is met


@pytest.mark.zookeeper
def test_a_small_run_commits_the_reported_offsets(tmp_path: Path):
    found = run("bench", "offsets", "--smoke", "--dir", str(tmp_path), "-o", "json").json()
    assert [row["partitions"] for row in found["offsets"]] == [1, 20]
    assert all(row["offsets_per_s"] > 0 for row in found["offsets"])
    assert found["bars"] == []


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.zookeeper
def test_the_starts_and_ends_of_logs_are_listed(tmp_path: Path):
    found = run("bench", "offsets", "--smoke", "--listed", "4", "--dir", str(tmp_path), "-o", "json").json()
    assert [(row["listed"], row["partitions"]) for row in found["listing"]] == [("ends", 4), ("starts and ends", 4)]
