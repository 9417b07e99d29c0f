"""Tests of groups from the first member to the last, on a real ZooKeeper: which partitions move, and which znodes are
written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kafka_coord.model import NO_OFFSET, PartitionSet, StartFetcher, StopFetcher, Subscription, TopicPartition
from kafka_coord.zk import layout
from tests.coordinator.harness import ScriptedConsumer, World
from tests.coordinator.rebalance_scenarios import SCENARIOS
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_rebalance(scenario: Callable[[World], None], world: World):
    scenario(world)


def test_the_first_member_gets_all_partitions_from_the_beginning(world: World):
    world.instance(1).start_elected()
    c1 = world.consumer("c1").join()
    target = world.settles("c1", partitions=4)
    assert target.generation == 1
    assert target.reason == "member c1 joined"
    assert c1.started == {TopicPartition("flights", p): NO_OFFSET for p in range(4)}


def test_new_partitions_are_assigned_without_stopping_others(world: World):
    world.instance(1).start_elected()
    c1, c2 = world.consumer("c1").join(), world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)
    world.kafka.topic("flights", 6)
    target = world.settles("c1", "c2", partitions=6)
    assert "flights" in target.reason
    stops = [command for c in (c1, c2) for command in c.seen if isinstance(command, StopFetcher)]
    assert len(stops) <= 1, "only the second member's join may cause a stop"


def test_a_topic_that_is_created_later_is_assigned_by_name_and_by_pattern(world: World):
    world.instance(1).start_elected()
    world.consumer("c1", topics=["routes"]).join()
    world.consumer("w1", group="audit", subscription=Subscription.matching("ro.*")).join()
    world.settles("c1", partitions=0)
    world.settles("w1", group="audit", partitions=0)
    world.kafka.topic("routes", 3)
    world.settles("c1", partitions=3)
    world.settles("w1", group="audit", partitions=3)


@pytest.mark.parametrize(
    "subscription", [Subscription.to(["routes"]), Subscription.matching("ro.*")], ids=["by name", "by pattern"]
)
def test_a_topic_that_is_created_while_its_group_waits_for_it_came_later(world: World, subscription: Subscription):
    world.instance(1).start_elected()
    c1 = world.consumer("c1", subscription=subscription).join()
    world.settles("c1", partitions=0)
    eventually(lambda: world.node(layout.offsets("delays")))
    world.kafka.topic("routes", 2)
    world.settles("c1", partitions=2)
    assert later(c1) == {TopicPartition("routes", 0): True, TopicPartition("routes", 1): True}


def test_what_comes_while_a_group_is_paused_came_later(world: World):
    """The group is paused when its first member joins, so nothing is started yet."""
    world.store.ensure_path(layout.paused("delays"))
    world.instance(1).start_elected()
    c1 = world.consumer("c1", topics=["flights", "routes"]).join()
    eventually(lambda: world.node(layout.topic_offsets("delays", "flights")))
    eventually(lambda: (node := world.node(layout.offsets("delays"))) and node.data)
    world.kafka.topic("flights", 5)
    world.kafka.topic("routes", 1)
    world.store.delete(layout.paused("delays"))
    world.settles("c1", partitions=6)
    came_later = {TopicPartition("flights", 4), TopicPartition("routes", 0)}
    assert {partition for partition, is_later in later(c1).items() if is_later} == came_later


def later(consumer: ScriptedConsumer) -> dict[TopicPartition, bool]:
    """Whether each partition that the consumer was told to start came later."""
    starts = [command.starts for command in consumer.seen if isinstance(command, StartFetcher)]
    return {partition: point.later for start in starts for partition, point in start.items()}


def test_a_deleted_topic_is_stopped_and_its_offsets_stay(world: World):
    world.instance(1).start_elected()
    c1 = world.consumer("c1").join()
    world.settles("c1", partitions=4)
    c1.position = {TopicPartition("flights", p): 50 for p in range(4)}
    world.kafka.delete_topic("flights")
    world.settles("c1", partitions=0)
    assert world.children(layout.topic_offsets("delays", "flights")) == ("0", "1", "2", "3")


def test_offsets_of_kafka_0_8_are_used(world: World):
    world.store.ensure_path(layout.offset("delays", "flights", 0))
    world.store.set(layout.offset("delays", "flights", 0), b"4711")
    world.instance(1).start_elected()
    c1 = world.consumer("c1").join()
    world.settles("c1", partitions=4)
    assert c1.started[TopicPartition("flights", 0)] == 4711


def test_at_the_end_of_a_grace_period_the_other_members_get_the_partitions(world: World):
    world.instance(1).start_elected()
    world.consumer("c1").join()
    c2 = world.consumer("c2", rejoin_grace_ms=700).join()
    world.settles("c1", "c2", partitions=4)
    c2.close()
    world.settles("c1", partitions=4)


def test_a_new_incarnation_gets_no_commands_of_the_last_one(world: World):
    world.instance(1).start_elected()
    c1 = world.consumer("c1", obedient=False).join()
    eventually(world.outstanding)
    c1.close()  # its start-fetcher is unread
    again = world.consumer("c1").join()
    world.settles("c1", partitions=4)
    assert {command.incarnation for command in again.seen} == {again.registration.incarnation}


def test_a_partition_with_an_unreadable_offset_is_not_started_and_the_others_are(world: World):
    path = layout.offset("delays", "flights", 2)
    world.store.ensure_path(path)
    world.store.set(path, b"twelve")
    world.instance(1).start_elected()
    c1 = world.consumer("c1").join()
    eventually(lambda: len(c1.owned) == 3)
    assert TopicPartition("flights", 2) not in c1.started
    assert world.node(path).data == b"twelve"
    world.store.set(path, b"12")
    world.settles("c1", partitions=4)
    assert c1.started[TopicPartition("flights", 2)] == 12


def test_the_history_has_reasons_moves_and_durations(world: World):
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    eventually(lambda: world.history()[-1].settled_ms is not None)
    world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)
    first, second = eventually(lambda: [d for d in world.history() if d.settled_ms is not None][1:] and world.history())
    assert (first.generation, first.reason, first.started, first.stopped) == (1, "member c1 joined", 4, 0)
    assert (second.generation, second.reason, second.moved) == (2, "member c2 joined", 2)
    assert second.moves["c1"]["lost"] == second.moves["c2"]["gained"]
    assert 0 <= second.stopped_ms <= second.settled_ms


def test_nothing_is_written_for_a_settled_group(world: World):
    instance = world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    eventually(lambda: world.history()[-1].settled_ms is not None)
    before = world.store.get("/consumers/coordinator_epoch").stat.mzxid
    zxids = lambda: [  # noqa: E731
        world.node(p).stat.mzxid
        for p in (layout.assignment("delays"), layout.ledger("delays", "c1"), layout.history("delays"))
    ]
    settled = zxids()
    passes = instance.service.coordinator.handler.passes
    for _ in range(3):
        instance.service.coordinator.queue.request("delays")
        eventually(lambda p=passes: instance.service.coordinator.handler.passes > p)
        passes = instance.service.coordinator.handler.passes
    assert zxids() == settled
    assert world.store.get("/consumers/coordinator_epoch").stat.mzxid == before


def test_eager_members_all_stop_before_any_starts(world: World):
    world.instance(1).start_elected()
    c1 = world.consumer("c1", mode="eager").join()
    world.settles("c1", partitions=4)
    c2 = world.consumer("c2", mode="eager").join()
    world.settles("c1", "c2", partitions=4)
    stops = [command for command in c1.seen if isinstance(command, StopFetcher)]
    assert stops[0].partitions == PartitionSet({"flights": range(4)}), "as in Kafka 0.8, all partitions must be stopped"
    assert len(c1.owned) == len(c2.owned) == 2


def test_many_groups_settle_and_a_stuck_group_delays_no_other(world: World):
    world.instance(1).start_elected()
    stuck = world.consumer("stuck", group="stuck", obedient=False).join()
    groups = [f"g{n}" for n in range(8)]
    for group in groups:
        world.consumer("c1", group=group).join()
    for group in groups:
        world.settles("c1", group=group, partitions=4)
    assert stuck.seen == []
    assert world.outstanding("stuck")
