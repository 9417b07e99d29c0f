"""The election on a simulated ZooKeeper: events that a real one shows only rarely."""

from __future__ import annotations

from kafka_coord.zk import layout
from kafka_coord.zk.election import ZkElection
from kafka_coord.zk.store import Delete, GetChildren, Store
from tests.simulation.scheduler import VirtualClock
from tests.simulation.server import SimulatedZooKeeper
from tests.simulation.store import Quiet, SimulatedStore


def open_store(zookeeper: SimulatedZooKeeper) -> SimulatedStore:
    store = SimulatedStore(zookeeper, VirtualClock(), Quiet(), 10_000)
    store.connect(zookeeper.replicas[0])
    return store


def stand(store: Store) -> ZkElection:
    for path in layout.PERSISTENT_ROOTS:
        store.ensure_path(path)
    return ZkElection(store, 1, {"channel": "127.0.0.1:1"}, lambda: None)


def test_an_instance_whose_session_was_replaced_leads_no_more_although_its_znode_is_still_there() -> None:
    """A client gives its session up before the server ends it."""
    store = open_store(SimulatedZooKeeper())
    election = stand(store)
    assert election.elect() is not None
    store.remote = None
    store.connect(store.replica)

    election.step()

    assert store.get(layout.COORDINATOR).stat.ephemeral_owner != store.session.session_id
    assert election.leadership is None
    assert election.why_lost() == "its ZooKeeper session ended"


def test_an_instance_is_elected_although_somebody_deleted_everything() -> None:
    store = open_store(SimulatedZooKeeper())
    election = stand(store)
    (children,) = store.read_many([GetChildren(layout.CONSUMERS)])
    assert isinstance(children, tuple)
    store.multi([*(Delete(f"{layout.CONSUMERS}/{name}") for name in children), Delete(layout.CONSUMERS)])

    won = election.elect()

    assert won is not None
    assert won.epoch == 1
