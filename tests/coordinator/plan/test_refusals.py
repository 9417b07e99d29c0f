"""Members that are not allowed to read a topic are left out for it, and only for it."""

from __future__ import annotations

import pytest

from kafka_coord.model import NO_PARTITIONS, PartitionSet, Subscription
from kafka_coord.model.member import Refusals
from tests.coordinator.plan.world import World


@pytest.fixture
def world() -> World:
    found = World()
    found.topic("flights", 4)
    found.topic("salaries", 2)
    for consumer in ("c1", "c2"):
        found.join(consumer, Subscription.to(["flights", "salaries"]))
    found.check_settled(found.settle())
    return found


def owned(world: World, consumer: str, topic: str) -> PartitionSet:
    return world.ledgers[consumer].owned.filter(lambda name: name == topic)


def test_a_refused_topic_goes_to_a_member_that_may_read_it(world: World) -> None:
    world.refusals["c1"] = Refusals(world.members["c1"].incarnation, {"salaries": "TOPIC_AUTHORIZATION_FAILED"})
    world.settle()
    assert owned(world, "c1", "salaries") == NO_PARTITIONS
    assert owned(world, "c2", "salaries") == PartitionSet({"salaries": {0, 1}})
    assert owned(world, "c1", "flights")
    del world.refusals["c1"]
    world.leave("c2")
    world.settle()
    assert owned(world, "c1", "salaries") == PartitionSet({"salaries": {0, 1}})


def test_a_topic_that_no_member_may_read_has_no_owner_and_is_told(world: World) -> None:
    for consumer in ("c1", "c2"):
        refused = Refusals(world.members[consumer].incarnation, {"salaries": "TOPIC_AUTHORIZATION_FAILED"})
        world.refusals[consumer] = refused
    world.settle()
    assert owned(world, "c1", "salaries") | owned(world, "c2", "salaries") == NO_PARTITIONS
    assert owned(world, "c1", "flights") | owned(world, "c2", "flights") == PartitionSet({"flights": range(4)})
    assert "no member may read salaries" in world.look().summary


def test_the_refusal_of_an_earlier_incarnation_counts_no_more(world: World) -> None:
    world.refusals["c1"] = Refusals(world.members["c1"].incarnation - 1, {"salaries": "TOPIC_AUTHORIZATION_FAILED"})
    world.settle()
    assert owned(world, "c1", "salaries")
