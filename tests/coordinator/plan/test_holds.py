"""Tests of groups in a restored tree: what members held is given to nobody before that is safe (ADR 58)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_coord.coordinator.plan import plan
from kafka_coord.coordinator.steps import GroupState, WriteHolds
from kafka_coord.model import TopicPartition, Unreadable
from kafka_coord.zk import layout
from tests.coordinator.plan.world import ASSIGNORS, GROUP, World


@pytest.fixture
def restored() -> World:
    """Two members that owned four partitions each; then the tree was lost and restored."""
    world = World()
    world.topic("flights", 8)
    for consumer in ("c1", "c2"):
        world.join(consumer, process=f"process of {consumer}")
    world.settle()
    world.lose_tree()
    return world


def owned(world: World, consumer: str) -> int:
    return len(world.ledgers[consumer].owned) if consumer in world.ledgers else 0


def test_the_same_process_gets_its_partitions_back_at_once(restored: World) -> None:
    restored.join("c1", process="process of c1")
    restored.join("c2", process="process of c2")

    decided = restored.settle()

    restored.check_settled(decided)
    assert restored.holds is None
    assert owned(restored, "c1") == owned(restored, "c2") == 4


@pytest.mark.parametrize("process", ["another", ""])
def test_a_name_alone_ends_no_hold(restored: World, process: str) -> None:
    restored.join("c1", process=process)

    decided = restored.settle()

    assert decided.state is GroupState.REBALANCING
    assert "waiting for what was held before the restore: c1 to keep flights[" in decided.summary
    assert not decided.steps
    assert owned(restored, "c1") == 0
    restored.end_holds()
    restored.check_settled(restored.settle())
    assert owned(restored, "c1") == 8


def test_a_partition_that_came_later_is_started_at_once(restored: World) -> None:
    restored.topic("flights", 9)
    restored.join("c3")

    restored.settle()

    assert restored.fetching["c3"] == {TopicPartition("flights", 8)}


def test_one_process_ends_only_its_own_hold(restored: World) -> None:
    restored.join("c1", process="process of c1")

    restored.settle()

    assert owned(restored, "c1") == 4
    assert restored.holds is not None
    assert list(restored.holds.consumers) == ["c2"]


def test_a_tree_that_is_lost_again_holds_what_either_process_may_fetch(restored: World) -> None:
    restored.join("c1", process="process of c1")
    restored.settle()
    restored.topic("flights", 9)  # c1 starts it, and c2 has not come back
    restored.settle()

    restored.lose_tree()
    restored.join("c3")
    restored.settle()

    assert owned(restored, "c3") == 0
    assert restored.holds is not None
    assert sum(len(one.partitions) for one in restored.holds.consumers.values()) == 9


def test_nothing_is_started_while_it_is_unknown_what_is_held(restored: World) -> None:
    restored.join("c1", process="process of c1")
    unreadable = Unreadable(layout.held(GROUP), "not JSON")

    decided = plan(replace(restored.observe(), holds=None, unreadable=(unreadable,)), ASSIGNORS)

    assert not decided.started
    assert "what was held before the restore is unknown, so nothing is started" in decided.summary
    assert "zkCli.sh delete /consumers/groups/g/held" in decided.summary


def test_the_wait_of_an_empty_group_ends_without_a_member(restored: World) -> None:
    restored.end_holds()

    steps = restored.look().steps

    assert [step for step in steps if isinstance(step, WriteHolds)]
    assert restored.look().steps == ()
    assert restored.holds is None
