"""Malformed, truncated and oversized znodes, and those of unknown versions, are logged and left unchanged. They stop no
other group."""

from __future__ import annotations

import json

import pytest

from kafka_coord.model import GroupSettings, Request, RequestType, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from tests.coordinator.harness import World
from tests.trouble.conftest import look, put, registered
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper

OVERSIZED = b'{"version":1,"host":"' + b"a" * 1_040_000 + b'"}'
SURROGATE = b'{"version":1,"subscription":{"flights":1},"pattern":"static","rejoin_grace_ms":9,"host":"\\ud800"}'
GARBAGE = [b"", b"\xff\xfe", b"[]", b'{"version":1,"subscr', b'{"version":7}', b"[" * 100_000, OVERSIZED, SURROGATE]


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda g: f"{g[:12]!r}-{len(g)}")
def test_an_unreadable_registration_is_left_out_and_other_members_continue(world: World, said, bystander, garbage):
    world.instance(1).start_elected()
    c1 = world.consumer("c1").join()
    world.settles("c1", partitions=4)
    put(world, layout.registration("delays", "broken"), garbage)
    said("cannot read path=", "ids/broken")
    world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)
    assert world.node(layout.registration("delays", "broken")).data == garbage
    assert len(c1.seen) == 2
    bystander()


def test_unreadable_znodes_of_every_kind_are_reported_and_do_not_affect_other_groups(world: World, said, bystander):
    world.store.ensure_path(layout.COORDINATORS)
    places = {
        "registration": layout.registration("broken", "c1"),
        "ledger": layout.ledger("broken", "c1"),
        "assignment": layout.assignment("broken"),
        "settings": layout.group("broken"),
        "pause": layout.paused("broken"),
        "request": layout.request("request-0000000001"),
        "topic": layout.broker_topic("garbled"),
        "broker": layout.broker("7"),
        "broker that is no number": layout.broker("²"),
    }
    for place in places.values():
        put(world, place, b'{"version":9}')
    put(world, layout.history("broken"), b"\xff")
    put(world, layout.command("broken", "c1", "start-0000000001"), b"\xff")
    world.store.set(layout.broker("²"), b'{"rack":"r1"}')
    world.instance(1).start_elected()
    bystander()
    for name in ("registration", "ledger", "assignment", "settings", "pause", "request", "topic"):
        said(places[name])
    for name, place in places.items():
        if "broker" not in name:
            assert world.node(place).data == b'{"version":9}', f"the {name} must stay unchanged"


def test_partitions_of_an_unreadable_ledger_do_not_move_until_its_consumer_is_evicted(world: World, said, bystander):
    world.instance(1).start_elected()
    c1, c2 = world.consumer("c1").join(), world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)
    before = c1.owned
    put(world, layout.ledger("delays", "c1"), b"\x00 oops")
    look(world)
    said("the ledger of c1 cannot be read", "evict it")
    c2.leave()  # the partitions of c1 are unknown, so only those of c2 may move
    eventually(lambda: world.target().members.keys() == {"c1"})
    look(world)
    c3 = world.consumer("c3").join()
    look(world)
    assert c3.owned.isdisjoint(before)
    assert world.ask(Request(RequestType.EVICT, group="delays", consumer="c1")).result == "done"
    c1.halt()
    eventually(lambda: world.node(layout.ledger("delays", "c1")) is None)  # a pass after the answer removes the ledger
    world.settles("c3", partitions=4)
    bystander()


def test_an_unreadable_target_freezes_its_group_until_a_rebalance_is_requested(world: World, said, bystander):
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    for _ in range(3):  # nothing moves, so no ledger contains these generations
        assert world.ask(Request(RequestType.REBALANCE, group="delays")).result == "done"
    generation = world.target().generation
    assert generation > max(ledger.generation for ledger in world.ledgers().values())
    put(world, layout.assignment("delays"), b'{"version":1,"gen')
    world.consumer("c2").join()
    said("the stored target cannot be read", "request a rebalance")
    look(world)
    assert world.node(layout.assignment("delays")).data == b'{"version":1,"gen'
    bystander()
    assert world.ask(Request(RequestType.REBALANCE, group="delays", reason="mend")).result == "done"
    assert world.settles("c1", "c2", partitions=4).generation > generation


def test_offsets_do_not_expire_while_the_groups_settings_are_unreadable(world: World, said):
    settings = fields.dump(GroupSettings(offsets_retention_ms=0).to_json())
    put(world, layout.group("delays"), settings.replace(b'"version":1', b'"version":8'))
    put(world, layout.offset("delays", "flights", 0), b"12")
    old = {"version": 1, "generation": 3, "epoch": 1, "inputs": "empty", "assignor": "sticky", "members": {}}
    put(world, layout.assignment("delays"), fields.dump(old | {"timestamp_ms": 1}))  # the group is empty since 1970
    world.instance(1).start_elected()
    said("cannot read path=", f"path={layout.group('delays')} ", "version 8")
    look(world)
    assert world.node(layout.offset("delays", "flights", 0)).data == b"12"
    world.store.set(layout.group("delays"), settings)
    world.ask(Request(RequestType.LOOK, group="delays"))
    eventually(lambda: world.store.exists(layout.group("delays")) is None)


def test_a_group_with_an_unreadable_pause_is_paused(world: World, said):
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    put(world, layout.paused("delays"), b"\xff")
    look(world)
    said("cannot read path=", layout.paused("delays"))
    world.consumer("c2").join()
    look(world)
    assert set(world.target().members) == {"c1"}
    world.store.delete(layout.paused("delays"))
    look(world)
    world.settles("c1", "c2", partitions=4)


@pytest.mark.parametrize("written", [b"not an identity!", b"oops", b"-5", b"\xff\xff", b'{"version":1}'])
def test_offsets_of_an_unknown_topic_are_neither_deleted_nor_used(world: World, said, written):
    path = layout.topic_offsets("delays", "flights")
    put(world, layout.offset("delays", "flights", 1), b"4711")
    world.store.set(path, written)
    world.kafka.topic("other", 1)
    world.instance(1).start_elected()
    c1 = world.consumer("c1", topics=["flights", "other"]).join()
    eventually(lambda: c1.owned.topics == ("other",))
    line = said("cannot read path=", f"path={path} ", "is not a topic identity", "set it to")
    assert world.node(layout.offset("delays", "flights", 1)).data == b"4711"
    world.store.set(path, line.rpartition("set it to '")[2].partition("'")[0].encode())  # as the log line says
    look(world)
    world.settles("c1", partitions=5)
    assert c1.started[TopicPartition("flights", 1)] == 4711


def test_a_topic_whose_znode_becomes_garbage_keeps_its_owners(world: World, said):
    world.instance(1).start_elected()
    c1 = world.consumer("c1").join()
    world.settles("c1", partitions=4)
    world.kafka.raw_topic("flights", b'{"version":3,"partitions":{"0":')
    said("cannot read path=", layout.broker_topic("flights"))
    look(world)
    assert len(c1.owned) == 4
    world.kafka.topic("flights", 6)
    world.settles("c1", partitions=6)


def test_with_an_unreadable_epoch_no_instance_is_elected_until_it_is_repaired(world: World, said, bystander):
    first = world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    world.store.set(layout.COORDINATOR_EPOCH, b"seven")
    world.consumer("c2").join()  # makes the coordinator write, so that it notices
    said("cannot elect anyone", layout.COORDINATOR_EPOCH, "'seven'", "Repair it")
    eventually(lambda: not first.service.leads)
    world.store.set(layout.COORDINATOR_EPOCH, b"7")
    eventually(lambda: first.service.leads, within_s=15)
    assert world.value(layout.COORDINATOR)["epoch"] == 8
    world.settles("c1", "c2", partitions=4)
    bystander()


def test_a_standby_instance_notices_that_the_epoch_was_repaired(world: World):
    """The elected instance continues with the epoch that ``doctor`` names, so the other one never gets elected."""
    first, second = world.instance(1).start_elected(), world.instance(2).start()
    world.store.set(layout.COORDINATOR_EPOCH, b"seven")
    eventually(lambda: second.service.obstacle)
    eventually(lambda: not first.service.leads)
    world.store.set(layout.COORDINATOR_EPOCH, b"1")
    eventually(lambda: first.service.leads, within_s=15)
    eventually(lambda: not second.service.obstacle, within_s=15)


def test_an_unreadable_coordinator_znode_ends_no_term_and_prevents_no_election(world: World, said):
    """Overwriting the elected instance's znode does not end its term. When it stops, another is elected."""
    first = world.instance(1).start_elected()
    second = world.instance(2).start()
    world.store.set(layout.COORDINATOR, b"\xff")
    said("cannot tell which instance is the coordinator", layout.COORDINATOR)
    assert first.service.leads
    first.stop()
    eventually(lambda: second.service.leads)
    world.consumer("c1").join()
    world.settles("c1", partitions=4)


def test_unreadable_and_unserializable_requests_do_not_stop_the_coordinator(world: World, said, bystander):
    lone = {"version": 1, "type": "resign", "reason": "x"}
    for n in range(300):
        world.store.create(layout.REQUEST_PREFIX if n == 0 else layout.request(f"stray-{n}"), b"?") if n else (
            world.store.ensure_path(layout.REQUESTS)
        )
    put(world, layout.request("lone"), json.dumps(lone).replace('"x"', '"\\ud800"').encode())
    instance = world.instance(1).start_elected()
    said("ignoring an unreadable request", "290 more below /consumers/requests")
    bystander()
    assert instance.service.leads
    assert registered(world, "x1", "calm-1")


def test_thousands_of_stray_znodes_are_reported_in_a_few_lines(world: World, said, caplog, bystander):
    parents = [layout.ids("delays"), layout.owners("delays"), layout.channel("delays", "c1"), layout.GROUPS]
    for parent in parents:
        world.store.ensure_path(parent)
    from kafka_coord.zk.store import Create

    for parent in parents:
        for at in range(0, 1_000, 500):
            world.store.multi([Create(f"{parent}/stray {n}", b"?") for n in range(at, at + 500)])
    world.instance(1).start_elected()
    world.consumer("c1").join()
    said("ignoring groups with illegal names", "995 more")
    said("cannot read: ", "more below", layout.ids("delays"))
    look(world)
    bystander()
    lines = [record for record in caplog.records if "stray" in record.getMessage()]
    assert len(lines) < 60


def test_an_unreadable_command_is_reported_and_counted_until_its_consumer_is_evicted(world: World, said):
    handler = world.instance(1).start_elected().service.coordinator.handler
    c1 = world.consumer("c1", obedient=False).join()
    (name,) = eventually(lambda: world.children(layout.channel("delays", "c1")))
    command = layout.command("delays", "c1", name)
    world.store.set(command, b"\xff oops")
    assert said("cannot read path=", command).endswith("evict it: kafka-coord groups evict delays c1")
    assert handler.unreadable == 1
    summary = handler.outcomes["delays"].summary
    assert f"c1 cannot read its command {name}, so it has stopped carrying out commands; evict it" in summary
    assert "waiting for c1" not in summary
    assert world.ask(Request(RequestType.EVICT, group="delays", consumer="c1")).result == "done"
    eventually(lambda: handler.unreadable == 0)
    c1.close()


def test_evicting_a_former_consumer_removes_its_unreadable_ledger(world: World):
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    put(world, layout.ledger("delays", "c9"), b"\x00 oops")
    answer = world.ask(Request(RequestType.EVICT, group="delays", consumer="c9"))
    assert (answer.result, answer.message) == ("done", "c9 was already gone; its ledger and commands were removed")
    eventually(lambda: world.node(layout.ledger("delays", "c9")) is None)
