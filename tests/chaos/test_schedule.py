"""Tests the faults that follow from a seed."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.chaos.journal import WORLD, Kind
from tests.chaos.judge.faults import OF_THE_WORLD
from tests.chaos.schedule import (
    AMID_FAULTS,
    CLEAN_STOP,
    EVENTS,
    FROZEN,
    KILLED,
    OF_KRAFT,
    ROLLING,
    SMOKE,
    SORTS_OF_CLIENTS,
    events,
    schedule,
    schedule_of_clients,
    schedule_of_events,
    turmoil,
)
from tests.chaos.world.scenes import SCENES


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


@pytest.mark.parametrize("clients", ["library", "mixed"])
def test_a_run_of_less_than_a_minute_has_an_event_and_measures_nothing(clients: str) -> None:
    (stretch,) = schedule(1, 0.5, clients=clients)
    assert (stretch.then, stretch.calm) == ((), SMOKE)
    assert SMOKE


@pytest.mark.parametrize("seed", range(20))
def test_a_run_of_less_than_a_minute_has_no_event_amid_other_faults(seed: int) -> None:
    assert all(one.role != WORLD for stretch in schedule(seed, 0.5) for one in stretch.planned)


def test_thirty_minutes_take_about_thirty_minutes() -> None:
    total = sum(stretch.seconds for stretch in schedule(1, 30.0))
    assert 19 * 60 < total < 30 * 60


@pytest.mark.parametrize("clients", sorted(EVENTS))
def test_half_an_hour_has_every_event_of_the_world_without_other_faults(clients: str) -> None:
    plan = schedule_of_clients(1, 30.0) if clients == "kafka" else schedule(1, 30.0, clients=clients)
    assert sorted(kind for stretch in plan for kind in stretch.calm) == sorted(EVENTS[clients])


def test_an_hour_has_every_event_that_may_happen_amid_other_faults() -> None:
    planned = [one for number in range(12) for one in events(1, number, 300.0, "library")]
    assert {one.kind for one in planned} == AMID_FAULTS


def test_events_of_the_world_take_nothing_from_the_other_faults() -> None:
    (stretch,) = schedule(3, 3.0)
    others = tuple(one for one in stretch.planned if one.role != WORLD)
    assert others == turmoil(random.Random(3), stretch.seconds)
    assert others != stretch.planned


def test_an_event_can_happen_alone_for_a_short_run() -> None:
    (stretch,) = schedule_of_events([Kind.RETENTION], 1.0)
    assert set(stretch.calm) == {Kind.RETENTION}
    assert (stretch.planned, stretch.then) == ((), ())


def test_every_event_of_the_world_has_a_scene_and_is_judged() -> None:
    scheduled = {kind for kinds in (*EVENTS.values(), OF_KRAFT) for kind in kinds}
    assert scheduled == set(SCENES) == OF_THE_WORLD


@pytest.mark.parametrize("seed", range(20))
def test_half_an_hour_exercises_the_rules_about_terms_and_about_other_clients(seed: int) -> None:
    """Only these events, without other faults, are evidence for them."""
    alone = {kind for stretch in schedule(seed, 30.0) for kind in stretch.calm}
    assert {Kind.IDLE_CONNECTIONS, Kind.LARGE_COMMIT} <= alone
