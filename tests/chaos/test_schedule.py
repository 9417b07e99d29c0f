"""Tests the faults that follow from a seed."""

from __future__ import annotations

import random
from collections import Counter

from tests.chaos.journal import Kind
from tests.chaos.schedule import (
    CLEAN_STOP,
    FROZEN,
    KILLED,
    ROLLING,
    SORTS_OF_CLIENTS,
    schedule,
    schedule_of_clients,
    turmoil,
)


def test_a_seed_always_gives_the_same_faults() -> None:
    assert schedule(7, 30.0) == schedule(7, 30.0)
    assert schedule(7, 30.0) != schedule(8, 30.0)


def test_an_hour_has_every_kind_of_fault() -> None:
    planned = turmoil(random.Random(1), 3600.0)
    seen = Counter((one.kind, one.role) for one in planned)
    for role in ("consumer", "serve", "zookeeper", "kafka"):
        for kind in (Kind.KILL, Kind.FREEZE, Kind.STOP, Kind.CUT):
            assert seen[kind, role], f"{role} {kind}"
    for kind in (Kind.EXPIRE, Kind.CLOCK, Kind.SLOW, Kind.EVICT, Kind.RESET, Kind.PAUSE, Kind.RESIGN, Kind.JOIN):
        assert any(one.kind is kind for one in planned), kind
    assert any(one.kind is Kind.PARTITIONS_ADDED for one in planned)
    assert any(one.kind is Kind.TOPIC_ADDED for one in planned)


def test_an_hour_with_stock_clients_has_every_fault_of_the_groups_log() -> None:
    planned = turmoil(random.Random(1), 3600.0, SORTS_OF_CLIENTS)
    seen = {(one.kind, one.role) for one in planned}
    for role in ("consumer", "serve", "kafka"):
        assert {(Kind.KILL, role), (Kind.FREEZE, role), (Kind.STOP, role)} <= seen
    assert {(Kind.LEADERS_MOVED, "log"), (Kind.FEW_REPLICAS, "log"), (Kind.FREEZE, "ensemble")} <= seen
    assert schedule_of_clients(7, 30.0) == schedule_of_clients(7, 30.0)


def test_faults_come_in_order_and_end_within_their_stretch() -> None:
    planned = turmoil(random.Random(2), 240.0)
    assert [one.at_s for one in planned] == sorted(one.at_s for one in planned)
    assert all(one.at_s < 240.0 and one.at_s + one.duration_s <= 241.0 for one in planned)


def test_every_run_measures_each_kind_of_failover_and_restarts_all_servers() -> None:
    for minutes in (3.0, 15.0, 30.0):
        then = [what for stretch in schedule(1, minutes) for what in stretch.then]
        assert {CLEAN_STOP, KILLED, FROZEN, *ROLLING} == set(then), minutes


def test_a_run_of_less_than_a_minute_measures_only_a_kill() -> None:
    assert [stretch.then for stretch in schedule(1, 0.5)] == [(KILLED,)]


def test_thirty_minutes_take_about_thirty_minutes() -> None:
    total = sum(stretch.seconds for stretch in schedule(1, 30.0))
    assert 20 * 60 < total < 30 * 60
