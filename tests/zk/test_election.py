"""Tests of the election on a real ZooKeeper. This file tests the effects of a server's death; the other scenarios are
in ``election_scenarios``."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from kafka_coord.dev.cluster.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from kafka_coord.zk import layout
from kafka_coord.zk.store import WatchEvent
from tests.waiting import eventually
from tests.zk.election_scenarios import SCENARIOS, Candidate
from tests.zk.sessions import OpenStore, Wire, opening_stores

pytestmark = pytest.mark.zookeeper

ServerFactory = Callable[..., ZooKeeperServer]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_election(scenario: Callable[[OpenStore], None], open_store: OpenStore) -> None:
    scenario(open_store)


def test_a_leader_that_is_cut_off_stops_deciding_before_another_can_be_elected(
    zookeeper_server_factory: ServerFactory,
) -> None:
    server = zookeeper_server_factory()
    with Wire(server.port) as wire, opening_stores(lambda: server.connect_string) as open_store:
        other = Candidate(open_store, 2)
        leader = Candidate(lambda **arguments: open_store(wire.hosts, **arguments), 1, session_timeout_ms=1_500)
        leader.wins()
        led_at_the_end: list[bool] = []

        def note(_event: WatchEvent) -> None:
            led_at_the_end.append(leader.election.still_leads())

        other.store.exists(layout.COORDINATOR, note)

        wire.cut()

        eventually(lambda: led_at_the_end)
        assert led_at_the_end == [False]
        assert other.wins().epoch == 2


def test_a_restarted_server_finds_the_same_leader_in_the_same_epoch(zookeeper_server_factory: ServerFactory) -> None:
    server = zookeeper_server_factory()
    with opening_stores(lambda: server.connect_string) as open_store:
        first = Candidate(open_store, 1, session_timeout_ms=20_000, call_timeout_s=15)
        second = Candidate(open_store, 2, session_timeout_ms=20_000, call_timeout_s=15)
        won = first.wins()

        server.kill()
        eventually(lambda: not first.election.still_leads())
        server.start()

        eventually(first.election.still_leads)
        first.election.step()
        assert first.election.is_mine()
        assert first.election.elect() == won
        assert second.election.elect() is None


def test_in_an_ensemble_the_leader_survives_the_death_of_its_server(
    zookeeper_ensemble: ZooKeeperEnsemble,
) -> None:
    with opening_stores(lambda: zookeeper_ensemble.connect_string) as open_store:
        first = Candidate(open_store, 1, session_timeout_ms=10_000, call_timeout_s=10)
        won = first.wins()
        leading = zookeeper_ensemble.leader()
        assert leading is not None

        leading.kill()

        eventually(lambda: first.has_written(won, "/consumers/after-the-failover"), within_s=30)
        eventually(first.election.still_leads, within_s=30)
        assert first.election.elect() == won


def test_an_unreadable_epoch_is_logged_once_with_its_remedy(
    open_store: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    candidate = Candidate(open_store, 1)
    candidate.store.create(layout.COORDINATOR_EPOCH, b"seven")
    candidate.store.ensure_path(layout.assignment("g"))
    candidate.store.set(layout.assignment("g"), b'{"version":1,"epoch":7}')

    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert candidate.election.elect() is None

    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "'seven'" in said[0]
    assert "highest epoch ever used (the assignments written so far name 7), never to a lower one" in said[0]
