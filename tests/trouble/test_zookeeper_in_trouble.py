"""ZooKeeper is frozen, down for a while, or old: no instance decides without a lease, and all continue afterwards."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.errors import SessionLost, StoreUnavailable
from kafka_coord.model import Request, RequestType
from kafka_coord.zk import connect, layout
from kafka_coord.zk.options import ZkOptions
from kafka_coord.zk.store import SessionState
from tests.coordinator.harness import FAST, World
from tests.monitor.dashboard.served import serving
from tests.trouble.conftest import look
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper


def own_world(server) -> World:
    world = World(server.connect_string, session_timeout_ms=2_000)
    world.kafka.topic("flights", 4)
    return world


@contextlib.contextmanager
def slow(server):
    """Lets the server run for 20 ms, freezes it for 400 ms, and so on, like a server that mostly collects garbage."""
    done = threading.Event()

    def run():
        while not done.is_set():
            server.pause()
            done.wait(0.4)
            server.resume()
            time.sleep(0.02)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_the_dashboard_reports_a_slow_server(zookeeper_server_factory):
    server = zookeeper_server_factory()

    def about_speed():
        with serving(server.connect_string) as served:
            eventually(lambda: served.ask("/api/v1/cluster/findings")[0] == 200)
            found = served.document("/cluster/findings")
        return [
            (one["severity"], one["what"].partition(" took")[0]) for one in found if one["check"] == "zookeeper speed"
        ]

    assert about_speed() == []
    with slow(server):
        assert about_speed() == [("warning", "ZooKeeper is slow: 5 reads")]


def test_an_instance_stops_deciding_before_its_session_on_a_frozen_server_can_have_ended(zookeeper_server_factory):
    server = zookeeper_server_factory()
    world = own_world(server)
    try:
        instance = world.instance(1).start_elected()
        world.consumer("c1").join()
        world.settles("c1", partitions=4)
        term = instance.service.coordinator
        server.pause()
        frozen_at = time.monotonic()
        deadline = instance.store.session.lease_deadline()
        assert deadline < frozen_at + instance.store.session.timeout_ms / 1000
        while time.monotonic() <= deadline:
            time.sleep(0.005)
        assert not instance.service.leads, "it must stop at its deadline, even before its client notices anything"
        passes = term.handler.passes
        term.queue.request("delays")
        assert not term.handler.step(), "it must not decide, although a group is due"
        assert term.handler.passes == passes
        server.resume()
        world.consumer("c2").join()
        eventually(lambda: set(world.target().members) >= {"c2"} and world.settled(), within_s=30)
        eventually(lambda: instance.service.leads)
    finally:
        server.resume()
        world.close()


def test_a_server_that_is_down_for_longer_than_every_session_loses_no_offset(zookeeper_server_factory, said):
    server = zookeeper_server_factory()
    world = own_world(server)
    try:
        first, second = world.instance(1).start_elected(), world.instance(2).start()
        c1 = world.consumer("c1").join()
        world.settles("c1", partitions=4)
        c1.position = dict.fromkeys(c1.owned, 42)
        c1.channel.commit(c1.registration, c1.position)
        generation, epoch = world.target().generation, world.value(layout.COORDINATOR)["epoch"]
        server.kill()
        said("waiting for ZooKeeper. I am 1", "making no decisions")
        eventually(lambda: not first.service.leads)
        eventually(lambda: world.store.session.state is not SessionState.CONNECTED)
        with pytest.raises(StoreUnavailable, match=r"not connected to ZooKeeper at 127\.0\.0\.1:\d+ for"):
            world.store.get(layout.COORDINATOR)
        eventually(lambda: c1.store.session.lease_deadline() < time.monotonic())
        server.start()
        eventually(lambda: sum(i.service.leads for i in (first, second)) == 1, within_s=30)
        c2 = world.consumer("c2").join()
        # if c1's session has survived, c2 gets a share; otherwise, it gets all partitions
        target = eventually(lambda: world.settled() if c2.owned else None, within_s=30)
        assert {c2.started[tp] for tp in c2.owned} == {42}
        assert target.generation > generation
        assert world.value(layout.COORDINATOR)["epoch"] >= epoch
    finally:
        world.close()


def test_a_coordinator_works_with_a_server_without_multi_read(world: World, bystander):
    """The fallback for ZooKeeper 3.4 and 3.5, which lack the request."""
    store = connect(world.hosts, session_timeout_ms=10_000, options=ZkOptions(multi_read=False))
    service = CoordinatorService(store, 1, {}, FAST)
    service.start()
    try:
        eventually(lambda: service.leads)
        c1, c2 = world.consumer("c1").join(), world.consumer("c2").join()
        world.settles("c1", "c2", partitions=4)
        c1.position = dict.fromkeys(c1.owned, 7)
        moved = c1.owned
        c1.leave()
        world.settles("c2", partitions=4)
        assert {c2.started[tp] for tp in moved} == {7}
        assert world.ask(Request(RequestType.REBALANCE, group="delays")).result == "done"
        look(world)
        bystander()
        c2.leave()
        assert world.ask(Request(RequestType.DELETE_GROUP, group="delays")).result == "done"
    finally:
        service.stop()
        store.close()


def test_the_error_for_an_unreachable_zookeeper_has_its_address_and_no_log_lines(caplog: pytest.LogCaptureFixture):
    with pytest.raises(StoreUnavailable, match=r"no ZooKeeper at 127\.0\.0\.1:1 accepted a connection within 0\.5 s"):
        connect("127.0.0.1:1", connect_timeout_s=0.5)
    assert caplog.records == [], "nothing may be logged before the error"


def test_a_call_of_a_closed_store_raises_session_lost(world: World):
    store = connect(world.hosts)
    store.close()
    with pytest.raises(SessionLost, match="was closed"):
        store.get("/")
