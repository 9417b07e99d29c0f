"""ZooKeeper frozen, gone for a while, or too old: no instance decides without the right to, and afterwards all
continue."""

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
    """The server runs for 20 ms, stands still for 400 ms, and so on, as one that collects garbage all the time."""
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


def test_the_dashboard_says_that_a_server_is_slow(zookeeper_server_factory):
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


def test_a_frozen_server_stops_every_decision_before_the_session_can_have_ended(zookeeper_server_factory):
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
        assert not instance.service.leads, "it stopped at the deadline, whatever its client had noticed by then"
        passes = term.handler.passes
        term.queue.request("delays")
        assert not term.handler.step(), "with a group due it decides nothing"
        assert term.handler.passes == passes
        server.resume()
        world.consumer("c2").join()
        eventually(lambda: set(world.target().members) >= {"c2"} and world.settled(), within_s=30)
        eventually(lambda: instance.service.leads)
    finally:
        server.resume()
        world.close()


def test_a_server_gone_for_longer_than_every_session_costs_time_and_no_offset(zookeeper_server_factory, said):
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
        # c1's session may have outlived the server: then c2 has a share, otherwise everything
        target = eventually(lambda: world.settled() if c2.owned else None, within_s=30)
        assert {c2.started[tp] for tp in c2.owned} == {42}
        assert target.generation > generation
        assert world.value(layout.COORDINATOR)["epoch"] >= epoch
    finally:
        world.close()


def test_a_server_that_knows_no_multi_read_is_read_one_by_one(world: World, bystander):
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


def test_what_nobody_answers_at_start_is_said_with_where_and_what_to_check(caplog: pytest.LogCaptureFixture):
    with pytest.raises(StoreUnavailable, match=r"no ZooKeeper at 127\.0\.0\.1:1 accepted a connection within 0\.5 s"):
        connect("127.0.0.1:1", connect_timeout_s=0.5)
    assert caplog.records == [], "nothing is said before the error"


def test_a_store_used_after_its_end_says_so(world: World):
    store = connect(world.hosts)
    store.close()
    with pytest.raises(SessionLost, match="was closed"):
        store.get("/")
