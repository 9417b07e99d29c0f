"""Consumers that cheat, fill their own channel, or forbid reading affect at most their own group."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl, make_digest_acl

from kafka_coord.channel.operations import Holder
from kafka_coord.groups.requests import submit
from kafka_coord.model import GroupSettings, Request, RequestType, StartFetcher
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import Create
from tests.coordinator.harness import FAST, World
from tests.trouble.conftest import look, put, registered
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def foreign(zk_hosts: str):
    """A client with other credentials. Only it may read the znodes that it creates."""
    acl = [make_digest_acl("them", "secret", all=True)]
    client = KazooClient(zk_hosts, default_acl=acl, auth_data=[("digest", "them:secret")])
    client.start(timeout=15)
    yield client
    client.stop()
    client.close()


def impatient(world: World, group: str = "delays") -> None:
    """Makes the group evict members that do not acknowledge within half a second."""
    put(world, layout.group(group), fields.dump(GroupSettings(rebalance_timeout_ms=500).to_json()))


def test_a_consumer_that_deletes_unread_commands_gets_no_more_than_its_share(world, bystander):
    world.instance(1).start_elected()
    cheat = world.consumer("cheat", obedient=False).join()
    eventually(world.outstanding)
    for name in world.children(layout.channel("delays", "cheat")):
        world.store.delete(layout.command("delays", "cheat", name))
    world.settles("cheat", partitions=4)
    honest = world.consumer("honest").join()
    stop = eventually(lambda: [c for c in world.children(layout.channel("delays", "cheat")) if c.startswith("stop")])
    world.store.delete(layout.command("delays", "cheat", stop[0]))
    world.settles("cheat", "honest", partitions=4)
    assert isinstance(honest.seen[0], StartFetcher)
    world.ask(Request(RequestType.EVICT, group="delays", consumer="cheat"))
    world.settles("honest", partitions=4)
    assert cheat.seen == []
    bystander()


def test_a_consumer_with_garbage_in_its_channel_is_evicted_and_the_garbage_is_removed(world: World, said, bystander):
    impatient(world)
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    hostile = world.consumer("bad", obedient=False).join()
    eventually(lambda: "bad" in world.ledgers())
    channel = layout.channel("delays", "bad")
    for name in ("start-0000000999", "stop-99999999999999", "nonsense", "stop-", "start-x"):
        put(world, f"{channel}/{name}", b"\xff" * 1000)
    put(world, f"{channel}/start-0000000999/below/even-deeper", b"?")  # so that it cannot simply be deleted
    eventually(lambda: not registered(world, "bad"))
    said("evicts bad", "not acknowledged within the limit of 0.5 s")
    eventually(lambda: not [c for c in world.children(channel) if c.startswith("start-0000000999")])
    said("removing foreign znodes below", "start-0000000999")
    world.consumer("c2").join()
    eventually(lambda: set(world.target().members) == {"c1", "c2"})
    eventually(lambda: world.owned() == dict(world.target().members))
    assert hostile.seen == []
    bystander()


def test_ten_thousand_forged_commands_are_removed_when_their_consumer_leaves(world: World, bystander):
    impatient(world)
    world.instance(1).start_elected()
    world.consumer("c1").join()
    bad = world.consumer("bad", obedient=False).join()
    eventually(lambda: "bad" in world.ledgers())
    channel = layout.channel("delays", "bad")
    for at in range(0, 10_000, 1_000):
        world.store.multi([Create(f"{channel}/stop-{n:010}", b"") for n in range(50_000 + at, 51_000 + at)])
    eventually(lambda: not registered(world, "bad"))
    bad.close()
    world.settles("c1", partitions=4)
    assert world.children(channel) == ()
    bystander()


def test_unexpected_children_of_znodes_prevent_no_eviction_and_no_removal(world: World, said, bystander):
    put(world, layout.registration("delays", "ghost"), b'{"version":1,"subscription":{"flights":1},"pattern":"static"}')
    put(world, f"{layout.registration('delays', 'ghost')}/child", b"")
    put(world, f"{layout.ledger('delays', 'gone')}/child", b"")
    world.instance(1).start_elected()
    world.consumer("c1").join()
    eventually(lambda: "ghost" in world.target().members if world.target() else False)
    assert world.ask(Request(RequestType.EVICT, group="delays", consumer="ghost")).result == "done"
    world.settles("c1", partitions=4)
    assert not registered(world, "ghost")
    said("kafka-coord stores nothing there", "owners/gone")
    bystander()


def test_an_unreadable_registration_stops_neither_the_startup_nor_its_group(world, foreign, said, bystander):
    for path in (layout.ids("delays"), layout.REQUESTS, layout.BROKER_IDS):
        world.store.ensure_path(path)
    foreign.create(layout.registration("delays", "s1"), b"{}")
    foreign.create(layout.group("secret"), b"{}")  # the whole group is unreadable
    foreign.create(layout.ids("secret"), b"{}")
    foreign.create(f"{layout.REQUESTS}/request-0000000001", b"{}")
    foreign.create(layout.broker(9), b"{}")
    foreign.create(layout.broker_topic("hidden"), b"{}")
    world.instance(1).start_elected()
    bystander()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    for path in (layout.ids("secret"), layout.registration("delays", "s1"), layout.REQUESTS, layout.broker(9)):
        said(path, "ACL")
    said(layout.broker_topic("hidden"), "does not allow it")


def test_an_unreadable_registration_in_a_readable_group_is_reported_and_the_group_continues(
    world: World, foreign, said, bystander
):
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    foreign.create(layout.registration("delays", "s1"), b"{}", ephemeral=True)
    said("cannot read path=", layout.registration("delays", "s1"), "its ACL forbids reading it")
    world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)
    bystander()


def test_a_request_that_the_coordinator_is_not_allowed_to_answer_is_set_aside(world: World, foreign, said, bystander):
    instance = world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    data = fields.dump(Request(RequestType.REBALANCE, group="delays").to_json())
    foreign.create(f"{layout.REQUESTS}/request-", data, acl=[make_acl("world", "anyone", read=True)], sequence=True)
    said("set aside a request", layout.REQUESTS)
    look(world)
    world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)
    assert instance.service.leads
    bystander()


def test_an_unreadable_cluster_history_stops_neither_groups_nor_resignations(world: World, foreign, said):
    world.store.ensure_path(layout.CONSUMERS)
    foreign.create(layout.HISTORY, b"")
    instance = world.instance(1).start_elected()
    said("not recording the cluster history", layout.HISTORY)
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    assert world.ask(Request(RequestType.RESIGN)).result == "done"
    assert instance.service.registered


def test_an_unreadable_successor_znode_prevents_no_election(world: World, foreign, said):
    world.store.ensure_path(layout.CONSUMERS)
    foreign.create(layout.SUCCESSOR, b"")
    world.instance(1).start_elected()
    other = world.instance(2).start()
    assert world.ask(Request(RequestType.RESIGN)).result == "done"
    eventually(lambda: other.service.leads)
    said("cannot name a successor", layout.SUCCESSOR)
    submit(world.store, Request(RequestType.RESIGN, successor=1))
    said("cannot coordinate. I am 2", layout.SUCCESSOR)
    assert other.service.leads


def test_a_long_reason_with_line_breaks_is_logged_as_one_short_line(world: World, said):
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    reason = "because\nERROR everything is lost\n" + "x" * 500_000
    asked = Request(RequestType.EVICT, group="delays", consumer="c1", reason=reason)
    assert world.ask(asked).result == "done"
    for words in ("evicts c1: operator asked: because ERROR everything", "unknown: evict (because ERROR everything"):
        line = said(words)
        assert "\n" not in line
        assert len(line) < 2_200


def test_a_second_live_consumer_with_the_same_name_is_refused(world: World):
    world.instance(1).start_elected()
    first = world.consumer("c1").join()
    world.settles("c1", partitions=4)
    twin = world.consumer("c1")
    found = twin.channel.register(fields.dump(twin.member.to_json()))
    assert isinstance(found, Holder)
    assert found.incarnation == first.registration.incarnation
    world.instance(2, replace(FAST, look_interval_ms=500)).start()
    assert world.settled()
