"""The bench of the socket channel: how it is judged, and a small run of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kafka_coord.dev.bench.sockets.crowd import CrowdPlace
from kafka_coord.dev.bench.sockets.run import SocketsOptions, bars, partitions_of, quantile_ms
from tests.cli.running import run

WHOLE = SocketsOptions()
STEADY = {"memberships_lost": 0}
FAILOVER = {"after_session_timeout_s": 14.0, "changed_hands": 0, "memberships_lost": 0}


def met(**changed: float) -> list[bool | None]:
    return [bar.met for bar in bars(WHOLE, STEADY, FAILOVER | changed)]


def test_each_figure_has_its_bar():
    assert met() == [True] * 4
    assert met(after_session_timeout_s=15.1) == [True, False, True, True]
    assert met(changed_hands=1) == [True, True, False, True]
    assert met(memberships_lost=1) == [True, True, True, False]
    assert [bar.met for bar in bars(WHOLE, {"memberships_lost": 2}, FAILOVER)] == [False, True, True, True]


def test_too_few_consumers_meet_nothing():
    few = replace(WHOLE, consumers=4_999)
    assert [bar.met for bar in bars(few, STEADY, FAILOVER)] == [None] * 4


def test_a_quantile_is_the_bound_of_its_bucket():
    assert quantile_ms([(0.001, 50), (0.01, 99), (float("inf"), 100)], 0.5) == 1.0
    assert quantile_ms([(0.001, 50), (0.01, 99), (float("inf"), 100)], 0.99) == 10.0
    assert quantile_ms([(0.001, 50), (float("inf"), 100)], 0.99) is None
    assert quantile_ms([], 0.5) is None


def test_a_crowd_is_spread_over_all_groups():
    crowd = CrowdPlace(("h:1",), "t", 1_000, groups=3, first=4, count=4)
    assert crowd.names() == [("g001", "c00004"), ("g002", "c00005"), ("g000", "c00006"), ("g001", "c00007")]
    assert partitions_of(replace(WHOLE, consumers=10, groups=3)) == 4


@pytest.mark.zookeeper
def test_in_a_small_run_all_consumers_come_back_with_their_partitions(tmp_path: Path):
    found = run("bench", "sockets", "--smoke", "--dir", str(tmp_path), "-o", "json").json()
    (registering,), (steady,), (failover,) = found["registering"], found["steady"], found["failover"]
    assert (registering["consumers"], registering["groups"]) == (40, 4)
    assert steady["pings"] >= 40
    assert steady["ping_p50_ms"] > 0
    assert steady["memberships_lost"] == 0
    assert (failover["changed_hands"], failover["memberships_lost"], failover["partitions_stopped"]) == (0, 0, 0)
    assert failover["elected_s"] > 0
    assert found["bars"] == []
