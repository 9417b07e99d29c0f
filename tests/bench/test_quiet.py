"""The bench of a quiet cluster: how it is judged, and a small run of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafka_coord.dev.bench.quiet import bars
from tests.cli.running import run

QUIET: dict[str, Any] = {"ended_terms": 0, "dead_member_removed": True, "slowest_commit_ms": 40.0}


def test_an_ended_term_a_dead_member_and_a_slow_commit_each_miss_a_target() -> None:
    assert [one.met for one in bars(QUIET)] == [True, True, True]
    assert [one.met for one in bars(QUIET | {"ended_terms": 1})] == [False, True, True]
    assert [one.met for one in bars(QUIET | {"dead_member_removed": False})] == [True, False, True]
    assert [one.met for one in bars(QUIET | {"slowest_commit_ms": 5_000.0})] == [True, True, False]


@pytest.mark.kafka
@pytest.mark.zookeeper
def test_no_term_ends_while_brokers_close_idle_and_expired_connections(tmp_path: Path) -> None:
    found = run("bench", "quiet", "--smoke", "--dir", str(tmp_path), "-o", "json").json()
    (row,) = found["quiet"]
    assert (row["ended_terms"], row["dead_member_removed"]) == (0, True)
    assert row["session_s"] > row["idle_s"]
    assert found["bars"] == []
