"""Znodes of a running group are deleted by hand: it recovers, no partition has two owners, and generation and epoch
only grow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_coord.errors import MembershipLost, NoNode, NotEmpty, TreeRefused
from kafka_coord.model import Request, RequestType, StartFetcher, StopFetcher, TopicPartition
from kafka_coord.zk import layout
from tests.coordinator.harness import FAST, World
from tests.trouble.conftest import look, put, registered, remove
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper


def flights(*numbers: int) -> set[TopicPartition]:
    return {TopicPartition("flights", n) for n in numbers}


def test_a_consumer_whose_registration_is_deleted_loses_its_membership(world: World, bystander):
    world.instance(1).start_elected()
    c1, c2 = world.consumer("c1").join(), world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)
    c1.position = dict.fromkeys(c1.owned, 99)
    world.store.delete(layout.registration("delays", "c1"))
    world.settles("c2", partitions=4)
    with pytest.raises(MembershipLost):
        c1.channel.commit(c1.registration, c1.position)
    assert set(c2.started.values()) == {-1}, "records after c1's last commit must be read again"
    c1.halt()
    c1.join()
    world.settles("c1", "c2", partitions=4)
    bystander()


def test_a_deleted_ledger_is_restored_and_no_partition_has_two_owners(world: World, said, bystander):
    world.instance(1).start_elected()
    c1 = world.consumer("c1", obedient=False).join()
    eventually(c1.obey)
    world.settles("c1", partitions=4)
    remove(world, layout.owners("delays"))
    c2 = world.consumer("c2").join()  # the target changes in the same pass that misses the ledger
    said("restored a deleted ledger", layout.ledger("delays", "c1"), "evict")
    stop = eventually(lambda: c1.obey(acknowledge=False))
    assert isinstance(stop, StopFetcher)
    look(world)
    assert c2.seen == [], "c1 has not acknowledged the stop"
    eventually(lambda: world.settled() is not None or (c1.obey(), False)[1])
    target = world.settles("c1", "c2", partitions=4)
    assert target.generation == 2
    assert c1.owned.isdisjoint(c2.owned)
    bystander()


def test_a_deleted_channel_with_a_stop_does_not_acknowledge_the_stop(world: World, said, bystander):
    world.instance(1).start_elected()
    c1 = world.consumer("c1", obedient=False).join()
    eventually(c1.obey)
    world.settles("c1", partitions=4)
    c2 = world.consumer("c2").join()
    eventually(lambda: world.ledgers()["c1"].stopping)
    remove(world, layout.channel("delays", "c1"))
    said("evicted consumer=c1", "someone deleted its channel")
    world.settles("c2", partitions=4)
    assert not registered(world, "c1"), "c1 must be evicted before its partitions are reassigned"
    with pytest.raises(MembershipLost):
        c1.channel.commit(c1.registration, {TopicPartition("flights", 0): 1})
    c1.join()
    eventually(c1.obey)
    world.settles("c1", "c2", partitions=4)
    assert isinstance(c2.seen[0], StartFetcher)
    bystander()


def test_a_deleted_target_is_written_again_with_a_higher_generation(world: World, bystander):
    world.instance(1).start_elected()
    c1 = world.consumer("c1").join()
    world.settles("c1", partitions=4)
    for _ in range(3):
        world.ask(Request(RequestType.REBALANCE, group="delays"))
    generation = world.target().generation
    world.store.delete(layout.assignment("delays"))
    look(world)
    assert world.settles("c1", partitions=4).generation > generation
    c1.leave()
    eventually(lambda: world.target().members == {})
    generation = world.target().generation
    world.store.delete(layout.assignment("delays"))  # this time, no ledger contains the generation either
    c2 = world.consumer("c2").join()
    assert world.settles("c2", partitions=4).generation > generation
    assert len(c1.seen) == len(c2.seen) == 1, "consumers must get no commands for partitions that do not move"
    bystander()


def test_a_new_history_that_begins_with_an_action_has_the_generation(world: World):
    world.instance(1).start_elected()
    c1 = world.consumer("c1").join()
    for _ in range(2):
        world.ask(Request(RequestType.REBALANCE, group="delays"))
    c1.leave()
    eventually(lambda: world.target().members == {})
    generation = world.target().generation
    put(world, layout.history("delays"), b"[]")
    world.ask(Request(RequestType.LOOK, group="delays", by="root@vm", action="pause"))
    assert [d.generation for d in world.history()] == [generation]
    world.store.delete(layout.assignment("delays"))
    world.consumer("c2").join()
    assert world.settles("c2", partitions=4).generation > generation


def test_a_deleted_history_loses_only_its_own_entries(world: World):
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    eventually(lambda: [d.settled_ms is not None for d in world.history()] == [True])  # it has the last generation
    world.store.delete(layout.history("delays"))
    world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)
    eventually(lambda: [d.generation for d in world.history()] == [2])


def test_deleting_the_coordinators_znode_causes_an_election(world: World, said, bystander):
    first = world.instance(1).start_elected()
    world.consumer("c1").join()
    before = world.settles("c1", partitions=4)
    world.store.delete(layout.COORDINATOR)
    said("lost leadership", "someone deleted its znode")
    eventually(lambda: first.service.leads and world.value(layout.COORDINATOR)["epoch"] == 2)
    look(world)
    assert world.target() == before
    bystander()


def test_epochs_do_not_go_back_after_the_epochs_znode_is_deleted(world: World, bystander):
    """No assignment is written after the first of four elections, so only the coordinator's own znode has the epoch."""
    instance = world.instance(1, replace(FAST, resign_pause_ms=20)).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    for epoch in (2, 3, 4):
        world.ask(Request(RequestType.RESIGN))
        eventually(lambda e=epoch: instance.service.leads and world.value(layout.COORDINATOR)["epoch"] == e)
    world.store.delete(layout.COORDINATOR_EPOCH)
    c2 = world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)
    assert c2.seen[0].epoch >= 4
    assert int(world.node(layout.COORDINATOR_EPOCH).data) >= 4
    bystander()
    world.ask(Request(RequestType.RESIGN))
    eventually(lambda: instance.service.leads and world.value(layout.COORDINATOR)["epoch"] > 4)


def test_a_group_deleted_while_it_runs_starts_again_when_its_consumers_register(world: World, bystander):
    world.instance(1).start_elected()
    c1, c2 = world.consumer("c1").join(), world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)
    for consumer in (c1, c2):
        consumer.halt()
    eventually(lambda: remove_all(world, layout.group("delays")))
    bystander()
    c1.join()
    c2.join()
    world.settles("c1", "c2", partitions=4)
    assert c1.owned.isdisjoint(c2.owned)


def test_an_instance_whose_tree_was_deleted_ends_instead_of_making_it_again(world: World):
    instance = world.instance(1).start_elected()
    c1 = world.consumer("c1").join()
    world.settles("c1", partitions=4)
    c1.halt()
    eventually(lambda: remove_all(world, layout.CONSUMERS))
    with pytest.raises(TreeRefused, match="is gone, and with it tree"):
        instance.service.wait(30.0)


def remove_all(world: World, path: str) -> bool:
    """Deletes the tree, and returns whether it is gone. The coordinator may write below it at the same time."""
    try:
        remove(world, path)
    except (NotEmpty, NoNode):
        return False
    return world.node(path) is None
