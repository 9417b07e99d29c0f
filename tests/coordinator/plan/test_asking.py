"""Tests of operators' requests: rebalance, evict, look, offsets, deletion, pause."""

from __future__ import annotations

import pytest

from kafka_coord.coordinator.steps import (
    AnswerRequest,
    DeleteOffsets,
    GroupState,
    SetTarget,
    WriteLedgerAndCommands,
    WriteOffsets,
)
from kafka_coord.model import (
    NO_PARTITIONS,
    PartitionSet,
    Pause,
    RequestType,
    StartFetcher,
    Subscription,
    TopicPartition,
)
from tests.coordinator.plan.world import World


@pytest.fixture
def world() -> World:
    """c1 and c2 own flights[0-3] and flights[4-7]. No member subscribes to planes."""
    found = World()
    found.topic("flights", 8)
    found.topic("planes", 2)
    found.join("c1")
    found.join("c2")
    found.check_settled(found.settle())
    return found


def answer(world: World, request) -> tuple[str, str]:
    found = world.answer_to(request)
    return found.result, found.message


def test_a_rebalance_is_answered_together_with_its_new_target(world):
    request = world.ask(type=RequestType.REBALANCE, reason="after the move", by="op")

    decided = world.look()

    assert isinstance(decided.steps[0], SetTarget)
    assert world.assignment is not None
    assert (world.assignment.generation, world.assignment.reason) == (2, "operator asked: after the move")
    assert answer(world, request)[0] == "done"
    assert "generation 2" in answer(world, request)[1]
    world.check_settled(world.settle())


def test_several_rebalances_are_answered_with_one_new_target(world):
    requests = [world.ask(type=RequestType.REBALANCE) for _ in range(3)]

    world.look()

    assert {answer(world, request)[0] for request in requests} == {"done"}
    assert world.assignment is not None
    assert world.assignment.generation == 2


def test_the_answer_to_a_rebalance_says_that_the_group_has_no_members(world):
    world.leave("c1")
    world.leave("c2")
    world.settle()
    request = world.ask(type=RequestType.REBALANCE)

    world.look()

    assert answer(world, request) == ("done", "the group has no members; nothing to move")


def test_an_evicted_member_is_removed_and_the_others_get_its_partitions(world):
    request = world.ask(type=RequestType.EVICT, consumer="c2", reason="stuck")

    decided = world.look()

    assert "evicts c2: operator asked: stuck" in decided.summary
    assert answer(world, request) == ("done", "c2 was evicted and must register again")
    assert "members" not in decided.summary
    world.check_settled(world.settle())
    assert str(world.ledgers["c1"].owned) == "flights[0-7]"


def test_a_member_can_be_evicted_before_it_gets_partitions(world):
    world.join("c9", Subscription.to(["planes"]))
    world.ask(type=RequestType.EVICT, consumer="c9")

    world.look()

    assert "c9" not in world.members
    world.check_settled(world.settle())


def test_evicting_an_unknown_member_is_refused(world):
    request = world.ask(type=RequestType.EVICT, consumer="c9")

    decided = world.look()

    assert answer(world, request) == ("refused", "c9 is not a member of group g")
    assert len(decided.steps) == 1


def test_evicting_an_absent_member_gives_up_its_place(world):
    world.join("c2", rejoin_grace_ms=60_000)
    world.settle()
    world.leave("c2")
    request = world.ask(type=RequestType.EVICT, consumer="c2")

    world.check_settled(world.settle())

    assert answer(world, request) == ("done", "c2 was already gone; its place is no longer kept")
    assert str(world.ledgers["c1"].owned) == "flights[0-7]"


def test_a_look_is_answered(world):
    request = world.ask(type=RequestType.LOOK)

    world.look()

    assert answer(world, request) == ("done", "the group was checked")


def test_offsets_of_held_partitions_are_not_reset(world):
    request = world.ask(type=RequestType.RESET_OFFSETS, offsets={TopicPartition("flights", 5): 0})

    decided = world.look()

    assert answer(world, request) == ("refused", "c2 holds flights[5]; stop it first")
    assert len(decided.steps) == 1


def test_offsets_of_partitions_kept_for_an_absent_member_are_not_reset(world):
    world.join("c2", rejoin_grace_ms=60_000)
    world.settle()
    world.leave("c2")
    request = world.ask(type=RequestType.RESET_OFFSETS, offsets={TopicPartition("flights", 5): 0})

    world.look()

    assert answer(world, request) == ("refused", "c2 holds flights[5]; stop it first")


def test_offsets_of_partitions_without_a_holder_are_reset(world):
    request = world.ask(type=RequestType.RESET_OFFSETS, offsets={TopicPartition("planes", 0): 12})

    decided = world.look()

    assert isinstance(decided.steps[0], WriteOffsets)
    assert answer(world, request)[0] == "done"
    assert world.told_offsets == {TopicPartition("planes", 0): 12}


def started(steps) -> PartitionSet:
    commands = [command for step in steps if isinstance(step, WriteLedgerAndCommands) for command in step.commands]
    return PartitionSet.of(tp for one in commands if isinstance(one, StartFetcher) for tp in one.partitions)


@pytest.mark.parametrize(
    "request_of",
    [
        {"type": RequestType.RESET_OFFSETS, "offsets": {TopicPartition("flights", 0): 12}},
        {"type": RequestType.DELETE_OFFSETS, "partitions": PartitionSet({"flights": [0]})},
    ],
)
def test_partitions_whose_offsets_an_operator_set_are_started_by_a_later_pass(world, request_of):
    world.leave("c1")
    world.leave("c2")
    world.settle()
    world.join("c3", Subscription.to(["flights", "planes"]))
    request = world.ask(**request_of)

    decided = world.look()

    assert any(isinstance(step, WriteOffsets | DeleteOffsets) for step in decided.steps)
    assert answer(world, request)[0] == "done"
    assert started(decided.steps) == NO_PARTITIONS
    assert started(world.look().steps) == PartitionSet({"flights": range(8), "planes": range(2)})
    world.check_settled(world.settle())


def test_each_pass_carries_out_one_of_several_requests_that_set_offsets(world):
    world.leave("c1")
    world.leave("c2")
    world.settle()
    first = world.ask(type=RequestType.RESET_OFFSETS, offsets={TopicPartition("flights", 0): 12})
    refused = world.ask(type=RequestType.RESET_OFFSETS, offsets={TopicPartition("trains", 0): 0})
    second = world.ask(type=RequestType.RESET_OFFSETS, offsets={TopicPartition("flights", 0): 7})

    decided = world.look()

    assert [step.request.request_id for step in decided.steps if isinstance(step, WriteOffsets)] == [first.request_id]
    assert answer(world, first)[0] == "done"
    world.settle()
    assert answer(world, refused)[0] == "refused"
    assert answer(world, second)[0] == "done"
    assert world.told_offsets == {TopicPartition("flights", 0): 7}


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ({TopicPartition("trains", 0): 0}, "Kafka has no topic trains"),
        ({TopicPartition("planes", 2): 0}, "topic planes has no partition 2"),
        ({}, "the request does not name any partition"),
    ],
)
def test_a_reset_of_partitions_that_do_not_exist_is_refused(world, offsets, message):
    request = world.ask(type=RequestType.RESET_OFFSETS, offsets=offsets)

    decided = world.look()

    assert answer(world, request) == ("refused", message)
    (step,) = (one for one in decided.steps if isinstance(one, AnswerRequest))
    assert step.request.partitions == PartitionSet.of(offsets)


def test_only_offsets_of_partitions_without_a_holder_are_deleted(world):
    held = world.ask(type=RequestType.DELETE_OFFSETS, partitions=PartitionSet({"flights": [0]}))
    free = world.ask(type=RequestType.DELETE_OFFSETS, partitions=PartitionSet({"planes": [0, 1]}))

    decided = world.look()

    assert answer(world, held)[0] == "refused"
    assert answer(world, free)[0] == "done"
    assert [step.request for step in decided.steps if isinstance(step, DeleteOffsets)] == [free]


def test_offsets_of_a_deleted_topic_may_be_deleted(world):
    request = world.ask(type=RequestType.DELETE_OFFSETS, partitions=PartitionSet({"trains": [0]}))

    world.look()

    assert answer(world, request)[0] == "done"


def test_a_group_with_members_is_not_deleted(world):
    request = world.ask(type=RequestType.DELETE_GROUP)

    world.look()

    assert answer(world, request) == ("refused", "the group has members (c1 c2); stop them first")
    assert not world.removed


def test_a_group_without_members_is_deleted_and_its_other_requests_are_refused(world):
    world.leave("c1")
    world.leave("c2")
    reset = world.ask(type=RequestType.RESET_OFFSETS, offsets={TopicPartition("planes", 0): 12})
    request = world.ask(type=RequestType.DELETE_GROUP)

    decided = world.look()

    assert decided.state is GroupState.DEAD
    assert world.removed
    assert answer(world, request)[0] == "done"
    assert answer(world, reset)[0] == "refused"


def test_requests_for_other_groups_and_answered_ones_have_no_effect(world):
    world.requests["request-1"] = world.ask(type=RequestType.LOOK).__class__(
        type=RequestType.EVICT, group="other", consumer="c1", request_id="request-1"
    )
    world.look()

    assert "c1" in world.members


def test_while_paused_nothing_moves_and_partitions_of_dead_members_are_released(world):
    world.pause = Pause(by="op", reason="maintenance")
    world.leave("c2")
    world.join("c3")

    decided = world.look()

    assert decided.state is GroupState.PAUSED
    assert decided.summary.startswith("paused by op (maintenance): nothing is moved, started or evicted")
    assert "released from consumers that are gone: flights[4-7] of c2" in decided.summary
    assert sorted(world.ledgers) == ["c1"]
    assert world.look().steps == ()

    world.pause = None
    world.check_settled(world.settle())


def test_while_paused_an_acknowledged_stop_still_releases_the_partitions(world):
    world.join("c3")
    world.look()
    world.pause = Pause()
    world.obey_all()

    world.look()

    assert all(not ledger.stopping for ledger in world.ledgers.values())
    assert not world.ledgers.get("c3") or not world.ledgers["c3"].owned


def test_while_paused_a_rebalance_waits_and_the_summary_says_so(world):
    world.pause = Pause()
    request = world.ask(type=RequestType.REBALANCE)

    decided = world.look()

    assert decided.steps == ()
    assert "1 rebalance request pending until it is resumed" in decided.summary
    world.pause = None
    world.look()
    assert answer(world, request)[0] == "done"


def test_while_paused_no_slow_member_is_evicted(world):
    world.join("c3")
    world.look()
    world.pause = Pause()
    world.overdue.add("c1")

    world.look()

    assert "c1" in world.members


def test_while_paused_other_requests_are_answered(world):
    world.pause = Pause()
    look = world.ask(type=RequestType.LOOK)
    evict = world.ask(type=RequestType.EVICT, consumer="c2")
    reset = world.ask(type=RequestType.RESET_OFFSETS, offsets={TopicPartition("planes", 0): 12})

    world.look()

    assert [answer(world, request)[0] for request in (look, evict, reset)] == ["done"] * 3
    assert "c2" not in world.members


def test_a_paused_group_does_not_expire(world):
    world.leave("c1")
    world.leave("c2")
    world.settle()
    world.pause = Pause()
    world.retention_passed = True

    assert world.look().state is GroupState.PAUSED
    assert not world.removed
