"""Tests of the election on a simulated ZooKeeper, with events that are rare on a real one."""

from __future__ import annotations

import pytest

from kafka_coord.zk import layout
from kafka_coord.zk.election import ZkElection
from kafka_coord.zk.instance import HOLD_BACK_S, Successor, name_op
from kafka_coord.zk.store import Delete, GetChildren, SetData, Store
from tests.simulation.scheduler import VirtualClock
from tests.simulation.server import SimulatedZooKeeper
from tests.simulation.store import SimulatedStore, connected_store


def stand(store: Store, broker_id: int = 1) -> ZkElection:
    for path in layout.PERSISTENT_ROOTS:
        store.ensure_path(path)
    return ZkElection(store, broker_id, {"channel": "127.0.0.1:1"}, lambda: None)


@pytest.fixture
def vacant() -> tuple[VirtualClock, list[ZkElection], SimulatedStore]:
    """Brokers 1, 2 and 3. Broker 1 was elected, and resigned with broker 3 as its successor."""
    zookeeper, clock = SimulatedZooKeeper(), VirtualClock()
    stores = [connected_store(zookeeper, clock) for _ in range(3)]
    elections = [stand(store, broker_id) for broker_id, store in enumerate(stores, 1)]
    leadership = elections[0].elect()
    assert leadership is not None
    stores[0].multi([leadership.fence, name_op(stores[0], Successor(3, leadership.epoch))])
    elections[0].resign(leadership)
    return clock, elections, stores[0]


def test_an_instance_with_a_new_session_no_longer_leads_although_its_znode_still_exists() -> None:
    """A client gives up its session before the server ends it."""
    store = connected_store(SimulatedZooKeeper())
    election = stand(store)
    assert election.elect() is not None
    store.remote = None
    store.connect(store.replica)

    election.step()

    assert store.get(layout.COORDINATOR).stat.ephemeral_owner != store.session.session_id
    assert election.leadership is None
    assert election.why_lost() == "its ZooKeeper session ended"


def test_an_instance_is_elected_after_all_znodes_were_deleted() -> None:
    store = connected_store(SimulatedZooKeeper())
    election = stand(store)
    (children,) = store.read_many([GetChildren(layout.CONSUMERS)])
    assert isinstance(children, tuple)
    store.multi([*(Delete(f"{layout.CONSUMERS}/{name}") for name in children), Delete(layout.CONSUMERS)])

    won = election.elect()

    assert won is not None
    assert won.epoch == 1


Vacancy = tuple[VirtualClock, list[ZkElection], SimulatedStore]


def test_other_candidates_wait_for_the_named_successor(vacant: Vacancy) -> None:
    _, (first, second, third), _ = vacant
    assert first.elect() is None
    assert second.elect() is None
    assert second.successor() == 3
    assert third.elect() is not None


def test_other_candidates_wait_for_a_successor_only_for_a_limited_time(vacant: Vacancy) -> None:
    clock, (_, second, third), _ = vacant
    assert second.elect() is None
    clock.now += HOLD_BACK_S
    won = second.elect()
    assert won is not None
    assert won.epoch == 2
    assert third.elect() is None


def test_a_named_successor_counts_for_only_one_election(vacant: Vacancy) -> None:
    _, (_, second, third), _ = vacant
    leadership = third.elect()
    third.resign(leadership)
    assert second.elect() is not None


@pytest.mark.parametrize("garbage", [b"", b"\xff", b'{"version": 1, "broker_id": "3", "epoch": 1}', b'{"version": 9}'])
def test_an_unreadable_successor_delays_no_candidate(vacant: Vacancy, garbage: bytes) -> None:
    _, (_, second, _), store = vacant
    store.multi([SetData(layout.SUCCESSOR, garbage)])
    assert second.elect() is not None
