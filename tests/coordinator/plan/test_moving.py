"""Tests of the moves when members or topics change: who stops and starts, in which order, with which summary."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from kafka_coord.coordinator.plan import plan
from kafka_coord.coordinator.steps import ForgetConsumer, GroupState, SetTarget, WriteLedgerAndCommands
from kafka_coord.model import CommandId, CommandType, Mode, PartitionSet, StartFetcher, StopFetcher, Subscription
from tests.coordinator.plan.world import ASSIGNORS, World


@pytest.fixture
def world() -> World:
    """A world with the topic flights of 8 partitions."""
    found = World()
    found.topic("flights", 8)
    return found


def settled(world: World, *consumers: str, **fields: object) -> World:
    for consumer in consumers:
        world.join(consumer, **fields)
    world.check_settled(world.settle())
    return world


def owned(world: World) -> dict[str, str]:
    return {consumer: str(ledger.owned) for consumer, ledger in sorted(world.ledgers.items())}


def written(decided, kind=WriteLedgerAndCommands):
    return [step for step in decided.steps if isinstance(step, kind)]


def outstanding(world: World, consumer: str) -> list[CommandType]:
    return [command_id.type for command_id, _ in world.channels[consumer]]


def test_the_first_member_gets_all_partitions_in_one_pass(world):
    world.join("c1")

    decided = world.look()

    assert decided.state is GroupState.REBALANCING
    assert decided.summary == ("generation 1: member c1 joined; 8 partitions to move; told c1 to start flights[0-7]")
    (step,) = written(decided)
    assert isinstance(step.commands[0], StartFetcher)
    assert step.commands[0].reason == "member c1 joined"
    assert (step.commands[0].generation, step.commands[0].epoch) == (1, 1)


def test_a_start_names_the_assignor_only_to_a_member_that_requested_another(world):
    world.join("c1", assignor="stciky")
    world.join("c2")

    decided = world.look()

    starts = {step.ledger.consumer: step.commands[0] for step in written(decided)}
    assert {consumer: start.assignor for consumer, start in starts.items()} == {"c1": "sticky", "c2": ""}
    assert starts["c1"].to_json()["assignor"] == "sticky"
    assert "assignor" not in starts["c2"].to_json()


def test_a_pass_over_a_group_at_rest_writes_nothing_and_its_summary_says_so(world):
    settled(world, "c1", "c2")

    decided = world.look()

    assert decided.steps == ()
    assert decided.state is GroupState.STABLE
    assert decided.summary == "no change: 2 members own 8 partitions, generation 1"


def test_a_new_members_partitions_are_started_only_after_the_others_stopped(world):
    settled(world, "c1", "c2")
    world.join("c3")

    decided = world.look()

    assert "generation 2: member c3 joined; 2 partitions to move" in decided.summary
    assert "waiting for c1 to stop flights[3], c2 to stop flights[7]" in decided.summary
    assert world.ledgers["c3"].owned == PartitionSet()
    assert (outstanding(world, "c1"), outstanding(world, "c3")) == ([CommandType.STOP_FETCHER], [])

    world.obey("c1")
    world.look()
    assert str(world.ledgers["c3"].owned) == "flights[3]"

    world.obey("c2")
    decided = world.look()
    assert "waiting for c3 to start all of flights[3]" in decided.summary
    assert str(world.ledgers["c3"].owned) == "flights[3]", "the next start must wait for the outstanding one"

    world.obey("c3")
    world.check_settled(world.settle())
    assert owned(world) == {"c1": "flights[0-2]", "c2": "flights[4-6]", "c3": "flights[3,7]"}


def test_the_summary_names_the_members_that_are_waited_for(world):
    settled(world, "c1", "c2")
    world.join("c3")
    world.look()

    decided = world.look()

    assert decided.steps == ()
    assert decided.summary == "waiting for c1 to stop flights[3], c2 to stop flights[7]"


def test_a_stop_without_stopping_partitions_in_the_ledger_is_reported(world):
    settled(world, "c1")
    stop = StopFetcher(1, 1, 1, PartitionSet(), "by hand")
    world.channels["c1"].append((CommandId(99, CommandType.STOP_FETCHER, "stop-0000000099"), stop))

    assert (
        "waiting for c1 to acknowledge stop-0000000099, although its ledger has no stopping partitions"
        in world.look().summary
    )


def test_a_dead_members_partitions_are_released_and_started_elsewhere_in_one_pass(world):
    settled(world, "c1", "c2")
    world.leave("c2")

    decided = world.look()

    assert [type(step) for step in decided.steps] == [ForgetConsumer, SetTarget, WriteLedgerAndCommands]
    assert "member c2 left" in decided.summary
    assert "released from consumers that are gone: flights[4-7] of c2" in decided.summary
    assert "told c1 to start flights[4-7]" in decided.summary


def test_the_commands_of_a_dead_member_are_deleted_with_its_ledger(world):
    settled(world, "c1", "c2")
    world.join("c3")
    world.look()
    world.leave("c1")

    (forgotten,) = written(world.look(), ForgetConsumer)

    assert forgotten.consumer == "c1"
    assert len(forgotten.drop_commands) == 1
    assert world.channels["c1"] == []
    world.check_settled(world.settle())


def test_a_member_that_restarted_between_two_passes_gets_its_partitions_back(world):
    settled(world, "c1", "c2")
    world.join("c1")

    decided = world.look()

    (step,) = decided.steps
    assert isinstance(step, WriteLedgerAndCommands)
    assert step.ledger.incarnation == world.members["c1"].incarnation
    assert str(step.commands[0].partitions) == "flights[0-3]"
    assert world.assignment is not None
    assert world.assignment.generation == 1


def test_commands_for_an_earlier_incarnation_are_dropped(world):
    world.join("c1")
    world.look()
    old = [command_id.name for command_id, _ in world.channels["c1"]]
    world.join("c1")

    (step,) = written(world.look())

    assert list(step.drop_commands) == old
    world.check_settled(world.settle())


def test_a_release_comes_before_the_start_that_needs_it(world):
    """c1 has restarted. The update of its ledger releases the partitions that c0 starts, although c0 comes first by
    name."""
    settled(world, "c1")
    world.join("c0")
    world.join("c1")

    steps = written(world.look())

    assert [step.ledger.consumer for step in steps] == ["c1", "c0"]
    assert all(step.commands for step in steps)
    world.check_settled(world.settle())


def test_two_members_that_swap_partitions_are_not_both_started_at_once(world):
    """Both have restarted, and the new target swaps their partitions, so one of them must wait."""
    settled(world, "c1", "c2")
    world.topic("flights", 2)
    world.check_settled(world.settle())
    first, second = world.ledgers["c1"], world.ledgers["c2"]
    world.join("c1")
    world.join("c2")
    assert world.assignment is not None
    swapped = {"c1": second.owned, "c2": first.owned}
    world.assignment = structs.replace(world.assignment, members=swapped)

    steps = written(world.look())

    assert [(step.ledger.consumer, len(step.commands)) for step in steps] == [("c1", 0), ("c2", 1)]
    world.check_settled(world.settle())


def test_a_place_is_kept_for_a_member_with_grace(world):
    settled(world, "c1", "c2", rejoin_grace_ms=10_000)
    world.leave("c2")

    decided = world.look()

    assert decided.steps == ()
    assert decided.state is GroupState.STABLE
    assert "keeping the place of c2" in decided.summary


def test_a_member_that_returns_within_its_grace_gets_its_own_partitions_back(world):
    settled(world, "c1", "c2", rejoin_grace_ms=10_000)
    world.leave("c2")
    world.look()
    world.join("c2", rejoin_grace_ms=10_000)

    decided = world.look()

    (step,) = decided.steps
    assert isinstance(step, WriteLedgerAndCommands)
    assert str(step.commands[0].partitions) == "flights[4-7]"
    world.check_settled(world.settle())
    assert world.assignment is not None
    assert world.assignment.generation == 1


def test_the_place_that_is_kept_has_the_members_latest_subscription(world):
    settled(world, "c1", "c2", rejoin_grace_ms=10_000)
    changed = structs.replace(world.members["c2"], subscription=Subscription.to(["flights", "planes"]))
    world.members["c2"] = changed

    world.check_settled(world.settle())

    assert world.ledgers["c2"].place == changed


def test_when_a_grace_period_ends_the_other_members_get_the_partitions(world):
    settled(world, "c1", "c2", rejoin_grace_ms=10_000)
    world.leave("c2")
    world.look()
    world.end_grace("c2")

    world.check_settled(world.settle())

    assert owned(world) == {"c1": "flights[0-7]"}


def test_an_absent_member_holds_only_the_partitions_that_the_target_keeps_for_it(world):
    settled(world, "c1", "c2", rejoin_grace_ms=10_000)
    world.leave("c2")
    world.join("c3")

    decided = world.look()

    cut = next(step for step in written(decided) if step.ledger.consumer == "c2")
    assert len(cut.ledger.owned) == 3
    assert cut.commands == ()
    assert str(world.ledgers["c3"].owned) == "flights[7]", "a dead incarnation holds nothing, so c3 need not wait"
    world.check_settled(world.settle())


def test_new_partitions_of_a_topic_move_no_existing_ones(world):
    settled(world, "c1", "c2")
    world.topic("flights", 10)

    decided = world.look()

    assert "topic flights grew from 8 to 10 partitions" in decided.summary
    assert not any(isinstance(c, StopFetcher) for step in written(decided) for c in step.commands)
    world.check_settled(world.settle())


def test_a_deleted_topic_is_stopped(world):
    world.topic("planes", 2)
    settled(world, "c1", subscription=Subscription.to(["flights", "planes"]))
    del world.topics["planes"]

    decided = world.look()

    assert "topic planes is gone" in decided.summary
    assert "waiting for c1 to stop planes[0-1]" in decided.summary
    world.check_settled(world.settle())


def test_a_topic_created_again_with_fewer_partitions_is_stopped_and_started(world):
    settled(world, "c1", "c2")
    world.recreate("flights", 3)

    decided = world.look()

    assert "topic flights was deleted and created again" in decided.summary
    assert {str(c.partitions) for step in written(decided) for c in step.commands} == {"flights[0-3]", "flights[4-7]"}
    world.check_settled(world.settle())
    assert PartitionSet.of(p for ledger in world.ledgers.values() for p in ledger.owned) == PartitionSet(
        {"flights": range(3)}
    )


def test_a_recreated_topic_is_not_started_while_a_member_holds_the_old_one(world):
    settled(world, "c1", "c2")
    world.recreate("flights", 8)
    world.look()
    world.obey("c1")

    world.look()

    assert world.ledgers["c1"].owned == PartitionSet()
    world.check_settled(world.settle())


def test_a_topic_that_gets_an_id_by_a_kafka_upgrade_is_not_stopped(world):
    world.topics.clear()
    world.topic("flights", 8, "4711")
    settled(world, "c1", "c2")
    world.topic("flights", 8, "AbCdEf 4711")

    decided = world.settle()

    assert decided.state is GroupState.STABLE
    assert all(not world.channels[consumer] for consumer in ("c1", "c2"))
    assert all(len(ledger.owned) == 4 for ledger in world.ledgers.values())


def test_a_topic_that_does_not_exist_yet_is_assigned_once_it_exists(world):
    settled(world, "c1", subscription=Subscription.to(["flights", "later"]))
    world.topic("later", 2)

    assert "topic later is new, with 2 partitions" in world.look().summary
    world.check_settled(world.settle())


def test_new_topics_that_match_a_pattern_are_assigned(world):
    settled(world, "c1", subscription=Subscription.matching("f.*"))
    world.topic("fares", 1)
    world.topic("planes", 1)

    world.check_settled(world.settle())

    assert owned(world) == {"c1": "fares[0] flights[0-7]"}


def test_a_member_without_partitions_also_has_a_ledger(world):
    world.topic("flights", 1)
    settled(world, "c1", "c2")

    assert owned(world) == {"c1": "flights[0]", "c2": "nothing"}


def test_partitions_are_spread_over_the_streams_of_a_consumer(world):
    settled(world, "c1", subscription=Subscription.to({"flights": 3}))
    world.topic("flights", 9)
    world.check_settled(world.settle())

    streams = [world.ledgers["c1"].stream_of(p) for p in world.ledgers["c1"].owned]

    assert sorted(streams.count(stream) for stream in range(3)) == [3, 3, 3]


def test_range_also_determines_the_streams(world):
    settled(world, "c1", "c2", subscription=Subscription.to({"flights": 2}), assignor="range")

    assert [world.ledgers["c1"].stream_of(p) for p in world.ledgers["c1"].owned] == [0, 0, 1, 1]


def test_eager_members_stop_all_partitions_before_any_are_started(world):
    settled(world, "c1", "c2", mode=Mode.EAGER)
    world.join("c3", mode=Mode.EAGER)

    decided = world.look()
    stops = {step.ledger.consumer: str(step.commands[0].partitions) for step in written(decided) if step.commands}
    assert stops == {"c1": "flights[0-3]", "c2": "flights[4-7]"}

    world.obey("c1")
    world.look()
    assert all(not ledger.owned for ledger in world.ledgers.values()), "c2 has not stopped yet"

    world.obey("c2")
    world.look()
    assert [len(ledger.owned) for _, ledger in sorted(world.ledgers.items())] == [3, 3, 2]
    world.check_settled(world.settle())


def test_eager_members_do_not_delay_incremental_members(world):
    settled(world, "e1", mode=Mode.EAGER)
    world.topic("planes", 2)
    world.join("i1", Subscription.to(["planes"]))

    world.look()

    assert str(world.ledgers["i1"].owned) == "planes[0-1]"


def test_a_member_that_does_not_acknowledge_in_time_is_evicted_and_replaced(world):
    settled(world, "c1", "c2")
    world.join("c3")
    world.look()
    world.overdue.add("c1")

    decided = world.look()

    assert "evicts c1: stop-fetcher (stop-" in decided.summary
    assert "not acknowledged within the limit of 60 s" in decided.summary
    assert "c1" not in world.members
    world.obey_all()
    world.check_settled(world.settle())
    assert sorted(world.ledgers) == ["c2", "c3"]


def test_a_member_that_has_acknowledged_in_the_meantime_is_not_evicted(world):
    settled(world, "c1", "c2")
    world.join("c3")
    world.look()
    world.obey("c1")
    world.overdue.add("c1")

    world.check_settled(world.settle())

    assert "c1" in world.members


def test_an_evicted_member_with_grace_loses_its_place(world):
    settled(world, "c1", "c2", rejoin_grace_ms=10_000)
    world.topic("flights", 9)
    world.look()
    late = next(consumer for consumer in ("c1", "c2") if world.channels[consumer])
    world.overdue.add(late)

    world.settle()

    assert list(world.ledgers) == [consumer for consumer in ("c1", "c2") if consumer != late]


def test_the_channel_of_a_consumer_that_left_long_ago_is_removed(world):
    settled(world, "c1", "c2")
    world.leave("c2")
    world.check_settled(world.settle())
    assert "c2" in world.channels
    world.retired.add("c2")

    (step,) = world.look().steps

    assert step == ForgetConsumer("c2", None, (), channel=True)
    assert "c2" not in world.channels


def test_znodes_in_a_channel_that_are_no_commands_are_left_unchanged_and_reported(world):
    settled(world, "c1", "c2")
    world.leave("c2")
    world.strays["c2"] = ("note",)
    world.settle()
    world.retired.add("c2")

    decided = world.look()

    assert decided.steps == ()
    assert "ignoring znodes in the channel of c2 that are not commands" in decided.summary


def test_the_last_member_leaves_and_the_group_is_empty(world):
    settled(world, "c1")
    world.leave("c1")

    decided = world.look()

    assert decided.state is GroupState.EMPTY
    assert "no members remain (c1 left)" in decided.summary
    assert world.assignment is not None
    assert (world.assignment.generation, world.assignment.members) == (2, {})
    again = world.look()
    assert (again.steps, again.summary) == ((), "no members")


def test_an_empty_group_is_removed_when_its_offsets_expire(world):
    settled(world, "c1")
    world.leave("c1")
    world.settle()
    world.retention_passed = True

    decided = world.look()

    assert decided.state is GroupState.DEAD
    assert world.removed


def test_a_group_with_members_never_expires(world):
    settled(world, "c1")
    world.retention_passed = True

    assert world.look().steps == ()


def test_the_next_coordinator_writes_nothing_for_a_settled_group(world):
    settled(world, "c1", "c2")
    world.epoch = 2

    assert world.look().steps == ()


def test_the_next_coordinator_continues_where_the_last_one_stopped(world):
    settled(world, "c1", "c2")
    world.join("c3")
    for step in world.decide().steps[:2]:
        world.apply(step)
    world.epoch = 2

    decided = world.look()

    assert not written(decided, SetTarget)
    assert {c.epoch for step in written(decided) for c in step.commands} == {2}
    world.check_settled(world.settle())


def test_a_lost_target_is_replaced_with_a_higher_generation(world):
    settled(world, "c1", "c2")
    world.assignment = None

    world.look()

    assert world.assignment is not None
    assert world.assignment.generation == 2


def test_the_plan_does_not_depend_on_the_order_of_the_observation(world):
    settled(world, "c1", "c2", "c3")
    world.join("c4")
    world.leave("c2")
    observed = world.observe()
    turned = replace(
        observed,
        members=dict(reversed(observed.members.items())),
        ledgers=dict(reversed(observed.ledgers.items())),
        channels=dict(reversed(observed.channels.items())),
    )

    assert plan(observed, ASSIGNORS) == plan(turned, ASSIGNORS)
