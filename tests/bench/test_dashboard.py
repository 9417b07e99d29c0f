"""The bench of the dashboard: how it is judged, and a small run of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_coord.dev.bench.dashboard import Watched, bars
from tests.cli.running import run

NOBODY = Watched(0, 4.0, 0, 20.0, 30.0)


def test_the_highest_cpu_use_per_page_and_the_greatest_delay_determine_the_verdict():
    assert [one.met for one in bars([NOBODY, Watched(1, 4.9, 100, 25.0, 90.0), Watched(11, 8.0, 100, 30.0, 90.0)])] == [
        True,
        True,
    ]
    assert [one.met for one in bars([NOBODY, Watched(1, 5.1, 100, 25.0, 90.0)])] == [False, True]
    assert [one.met for one in bars([NOBODY, Watched(1, 4.0, 100, 71.0, 90.0)])] == [True, False]


@pytest.mark.zookeeper
def test_a_small_run_opens_every_page(tmp_path: Path):
    found = run("bench", "dashboard", "--smoke", "--dir", str(tmp_path), "-o", "json").json()
    assert [row["pages"] for row in found["dashboard"]] == [0, 1, 3, 0]
    assert all(row["join_p50_ms"] > 0 for row in found["dashboard"])
    assert found["first_page"][0]["cpu_s"] >= 0
    assert found["bars"] == []
