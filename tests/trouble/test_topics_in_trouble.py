"""Topics that are missing, empty, deleted, recreated, renamed by an upgrade, or outside Kafka's names."""

from __future__ import annotations

import json

import pytest

from kafka_coord.errors import MembershipLost
from kafka_coord.model import NO_OFFSET, Request, RequestType, StopFetcher, Subscription, TopicPartition
from kafka_coord.zk import layout
from kafka_coord.zk.store import Create
from tests.coordinator.harness import World
from tests.coordinator.rebalance_scenarios import FIRST, SECOND
from tests.trouble.conftest import look, put
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper


def test_a_topic_is_assigned_once_it_exists(world: World):
    world.instance(1).start_elected()
    c1 = world.consumer("c1", topics=["later"]).join()
    world.settles("c1", partitions=0)
    world.kafka.topic("later", 3)
    world.settles("c1", partitions=3)
    assert len(c1.owned) == 3


def test_a_topic_without_partitions_is_assigned_once_it_has_some(world: World):
    world.kafka.topic("empty", 0)
    world.instance(1).start_elected()
    world.consumer("c1", topics=["empty", "flights"]).join()
    world.settles("c1", partitions=4)
    world.kafka.topic("empty", 2)
    world.settles("c1", partitions=6)


def test_illegal_topic_names_are_reported_and_legal_ones_are_served(world: World, said, bystander):
    put(world, layout.broker_topic("not legal"), json.dumps({"version": 1, "partitions": {"0": [1]}}).encode())
    put(world, layout.group("bad group!"), b"")
    put(world, layout.registration("delays", "c é"), b"{}")
    world.instance(1).start_elected()
    w1 = world.consumer("w1", subscription=Subscription.matching(".*")).join()
    eventually(lambda: w1.owned)
    for name, place in (("not legal", layout.BROKER_TOPICS), ("bad group!", layout.GROUPS)):
        said("illegal names", place, repr(name), "a-z A-Z 0-9")
    said("cannot read path=", "ids/c é", "not legal", "delete it")
    assert "not legal" not in w1.owned.topics
    bystander()


def test_a_late_commit_for_a_deleted_topic_does_not_apply_to_the_recreated_one(world: World, bystander):
    world.kafka.topic("flights", 4, topic_id=FIRST)
    world.instance(1).start_elected()
    slow = world.consumer("slow", obedient=False).join()
    eventually(slow.obey)
    world.settles("slow", partitions=4)
    slow.position = {TopicPartition("flights", p): 5000 for p in range(4)}
    slow.channel.commit(slow.registration, slow.position)
    world.kafka.delete_topic("flights")
    world.kafka.topic("flights", 2, topic_id=SECOND)
    eventually(lambda: world.ledgers()["slow"].stopping)
    other = world.consumer("other").join()
    look(world)
    assert other.seen == [], "no consumer may start the new topic while the old one is held"
    stop = eventually(slow.obey)  # the late stop commits 5000 again
    assert isinstance(stop, StopFetcher)
    eventually(lambda: world.settled() is not None or (slow.obey(), False)[1])
    started = {**slow.started, **other.started}
    assert {started[TopicPartition("flights", p)] for p in (0, 1)} == {NO_OFFSET}
    assert world.children(layout.topic_offsets("delays", "flights")) == ()
    bystander()


def test_thousands_of_stale_offsets_are_removed_with_several_requests(world: World):
    path = layout.topic_offsets("delays", "flights")
    world.kafka.topic("flights", 4, topic_id=SECOND)
    put(world, path, FIRST.encode())
    for at in range(0, 20_000, 2_000):
        world.store.multi([Create(f"{path}/{n}", b"5000") for n in range(at, at + 2_000)])
    world.instance(1).start_elected()
    c1 = world.consumer("c1").join()
    world.settles("c1", partitions=4)
    assert set(c1.started.values()) == {NO_OFFSET}
    assert world.children(path) == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, FIRST), (FIRST, None)],
    ids=["upgraded to 2.8", "written by an old tool"],
)
def test_a_topic_that_gets_its_first_id_or_loses_it_is_still_the_same_topic(world: World, before, after):
    world.kafka.topic("flights", 4, topic_id=before)
    world.instance(1).start_elected()
    c1 = world.consumer("c1").join()
    world.settles("c1", partitions=4)
    c1.position = {TopicPartition("flights", p): 70 + p for p in range(4)}
    c1.channel.commit(c1.registration, c1.position)
    world.kafka.topic("flights", 4, topic_id=after)
    look(world)
    c2 = world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)
    assert [type(command).__name__ for command in c1.seen] == ["StartFetcher", "StopFetcher"]
    assert c2.started == {tp: 70 + tp.partition for tp in c2.owned}


def test_two_members_of_different_topics_start_in_a_group_without_any_offsets(world: World):
    """The first start creates the parent of all offsets."""
    world.kafka.topic("a", 1)
    world.kafka.topic("b", 1)
    c1, c2 = world.consumer("c1", topics=["b"]).join(), world.consumer("c2", topics=["a"]).join()
    world.instance(1).start_elected()
    world.settles("c1", "c2", partitions=2)
    assert (c1.owned.topics, c2.owned.topics) == (("b",), ("a",))


def test_an_unreadable_offset_is_reported_with_a_remedy(world: World, said):
    put(world, layout.offset("delays", "flights", 2), b"twelve")
    world.instance(1).start_elected()
    c1 = world.consumer("c1").join()
    eventually(lambda: len(c1.owned) == 3)
    said(layout.offset("delays", "flights", 2), "b'twelve'", "reset-offsets delays --topic flights:2 --to-offset N")
    asked = Request(RequestType.RESET_OFFSETS, group="delays", offsets={TopicPartition("flights", 2): 12})
    assert world.ask(asked).result == "done"
    world.settles("c1", partitions=4)
    assert c1.started[TopicPartition("flights", 2)] == 12


def test_a_consumer_evicted_while_its_topic_was_deleted_commits_nothing(world: World):
    world.instance(1).start_elected()
    c1 = world.consumer("c1").join()
    world.settles("c1", partitions=4)
    c1.halt()
    world.store.delete(layout.registration("delays", "c1"))
    world.kafka.delete_topic("flights")
    with pytest.raises(MembershipLost):
        c1.channel.commit(c1.registration, {TopicPartition("flights", 0): 7})
    assert world.node(layout.offset("delays", "flights", 0)) is None
