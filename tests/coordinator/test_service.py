"""Tests of instances: they stand for election, start up, lose their session, are deposed, and stop."""

from __future__ import annotations

import pytest

from kafka_coord.coordinator.coordinator import ConsumerCoordinator
from kafka_coord.coordinator.deadlines import CoordinatorOptions
from kafka_coord.coordinator.execute import Executor
from kafka_coord.errors import Fenced, SettingsError
from kafka_coord.model import Subscription
from kafka_coord.zk import layout
from kafka_coord.zk.store import SetData
from tests.coordinator.harness import FAST, SESSION_MS, Instance, World
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper


def test_one_of_three_is_elected_and_all_are_listed(world: World):
    instances = [world.instance(n).start() for n in (1, 2, 3)]
    eventually(lambda: sum(i.service.leads for i in instances) == 1)
    assert world.children(layout.COORDINATORS) == ("1", "2", "3")
    elected = next(i for i in instances if i.service.leads)
    value = world.value(layout.COORDINATOR)
    assert value["brokerid"] == elected.broker_id
    assert value["epoch"] == int(world.node(layout.COORDINATOR_EPOCH).data) == 1
    assert value["endpoints"] == {"channel": f"127.0.0.1:{9000 + elected.broker_id}"}


def test_startup_reads_topics_and_groups_and_enqueues_every_group(world: World):
    world.kafka.topic("routes", 2)
    world.consumer("c1", topics=["flights"], obedient=False).join()
    world.consumer("w1", group="audit", subscription=Subscription.matching("r.*"), obedient=False).join()
    instance = world.instance(1)
    election = instance.service._election
    world.store.ensure_path(layout.COORDINATORS)
    leadership = eventually(election.elect)
    coordinator = ConsumerCoordinator(
        instance.store, leadership, election.still_leads, lambda: None, instance.service._assignors, FAST
    )
    coordinator.coordinator_startup()
    assert coordinator.registry.consumer_groups_per_topic == {"flights": {"delays"}}
    assert coordinator.registry.groups_with_wildcard_topics == {"audit"}
    assert coordinator.catalog.names() == {"flights", "routes"}
    assert coordinator.groups == {"delays", "audit"}
    assert {coordinator.queue.take_now(), coordinator.queue.take_now()} == {"delays", "audit"}
    assert coordinator.queue.take_now() is None
    coordinator.close()


def test_after_a_clean_stop_another_instance_takes_over_at_once_and_nothing_moves(world: World):
    first = world.instance(1).start_elected()
    second = world.instance(2).start()
    c1, c2 = world.consumer("c1").join(), world.consumer("c2").join()
    before = world.settles("c1", "c2", partitions=4)
    seen = len(c1.seen) + len(c2.seen)
    first.stop()
    eventually(lambda: second.service.leads, within_s=SESSION_MS / 2_000)
    world.consumer("x", group="other").join()
    world.settles("x", group="other", partitions=4)
    assert world.target() == before, "the target must not be written again if nothing changed"
    assert len(c1.seen) + len(c2.seen) == seen
    assert world.value(layout.COORDINATOR)["epoch"] == 2


def test_the_next_coordinator_completes_an_unfinished_rebalance(world: World):
    first = world.instance(1).start_elected()
    c1 = world.consumer("c1", obedient=False).join()
    eventually(c1.obey)
    world.settles("c1", partitions=4)
    c2 = world.consumer("c2").join()
    eventually(lambda: world.ledgers()["c1"].stopping)
    first.stop()
    world.instance(2).start_elected()
    stop = eventually(c1.obey)
    assert stop.epoch == 1
    target = world.settles("c1", "c2", partitions=4)
    assert target.epoch == 1
    assert c2.seen[0].epoch == 2
    eventually(lambda: world.history()[-1].settled_ms is not None)


def test_an_instance_whose_session_expired_forgets_its_state_and_stands_for_election_again(world: World, expire):
    instance = world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    term = instance.service.coordinator
    expire(instance.store)
    eventually(lambda: instance.service.coordinator is not term and instance.service.leads)
    assert term.registry.consumer_groups_per_topic == {}
    assert world.value(layout.COORDINATOR)["epoch"] == 2
    assert world.children(layout.COORDINATORS) == ("1",)
    world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)


def test_a_deposed_coordinator_cannot_write(world: World):
    instance = world.instance(1).start_elected()
    fence = instance.service.coordinator.leadership.fence
    world.store.ensure_path(layout.group("delays"))
    world.store.set(layout.COORDINATOR_EPOCH, b"2")  # as every election does
    with pytest.raises(Fenced):
        Executor(instance.store, fence).write([[SetData(layout.group("delays"), b"{}")]])
    assert world.node(layout.group("delays")).data == b""


def test_a_deposed_coordinator_steps_down_when_it_notices(world: World):
    instance = world.instance(1).start_elected()
    term = instance.service.coordinator
    world.store.set(layout.COORDINATOR_EPOCH, b"41")
    world.consumer("c1").join()  # makes the coordinator decide, so that it tries to write
    eventually(lambda: instance.service.coordinator is not term)
    eventually(lambda: instance.service.leads)
    assert world.value(layout.COORDINATOR)["epoch"] == 42, "the next epoch must follow the newest one"
    world.settles("c1", partitions=4)


def test_a_second_instance_with_the_same_broker_id_is_refused(world: World):
    world.instance(1).start()
    twin = Instance(world.hosts, 1)
    twin.service.start()
    with pytest.raises(SettingsError, match="broker id 1 is taken by an instance"):
        twin.service.wait(20)
    twin.stop()


def test_an_empty_group_is_removed_when_its_retention_ends(world: World):
    from kafka_coord.model import GroupSettings
    from kafka_coord.model import json_fields as fields

    world.store.ensure_path(layout.group("delays"))
    world.store.set(layout.group("delays"), fields.dump(GroupSettings(offsets_retention_ms=600).to_json()))
    world.instance(1, CoordinatorOptions(look_interval_ms=60_000)).start_elected()
    c1 = world.consumer("c1").join()
    world.settles("c1", partitions=4)
    c1.position = dict.fromkeys(c1.started, 12)
    c1.leave()
    eventually(lambda: world.node(layout.group("delays")) is None)


@pytest.mark.parametrize("garbage", [b"", b"\xff\xfe", b"[]", b'{"version":2}', b'{"version":1}', b"{" * 5000])
def test_unreadable_znodes_of_one_group_do_not_affect_other_groups(world: World, garbage: bytes):
    for path in (
        layout.registration("broken", "c1"),
        layout.ledger("broken", "c1"),
        layout.command("broken", "c1", "stop-0000000001"),
        layout.command("broken", "c2", "nonsense"),
        layout.paused("other"),
        layout.broker_topic("garbled"),
        layout.history("broken"),
        layout.registration("broken", "c 2"),
    ):
        world.store.ensure_path(path)
        world.store.set(path, garbage)
    world.store.delete(layout.paused("other"))
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    assert world.node(layout.registration("broken", "c1")).data == garbage


def test_a_group_continues_after_a_zookeeper_outage(zookeeper_server_factory):
    server = zookeeper_server_factory()
    world = World(server.connect_string)
    try:
        world.kafka.topic("flights", 4)
        world.instance(1).start_elected()
        c1 = world.consumer("c1").join()
        world.settles("c1", partitions=4)
        server.kill()
        server.start()
        world.consumer("c2").join()
        eventually(lambda: world.settled() and len(world.target().members) >= 1, within_s=30)
        target = eventually(
            lambda: world.settled() if set((world.target() or c1).members) >= {"c2"} else None, within_s=30
        )
        assert sum(map(len, target.members.values())) == 4
    finally:
        world.close()
