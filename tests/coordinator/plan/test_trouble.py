"""Tests of unreadable znodes, failing assignors, and groups too large for a znode: plans stay safe and report them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_coord.coordinator.assignors import AssignmentInputs, Target
from kafka_coord.coordinator.plan import plan
from kafka_coord.coordinator.plan.member_update import MAX_TARGET_BYTES
from kafka_coord.coordinator.steps import GroupState, SetTarget, WriteLedgerAndCommands
from kafka_coord.model import (
    GroupSettings,
    Ledger,
    Mode,
    PartitionSet,
    RequestType,
    StartFetcher,
    StopFetcher,
    Subscription,
    TopicPartition,
    Unreadable,
)
from kafka_coord.model.json_fields import dump
from kafka_coord.zk import layout
from tests.coordinator.plan.world import ASSIGNORS, GROUP, World


@pytest.fixture
def world() -> World:
    """c1 and c2 own flights[0-3] and flights[4-7]."""
    found = World()
    found.topic("flights", 8)
    found.join("c1")
    found.join("c2")
    found.check_settled(found.settle())
    return found


def test_an_unreadable_registration_without_a_ledger_is_not_a_member(world):
    world.join("c3")
    world.bad_registrations.add("c3")

    decided = world.look()

    assert decided.steps == ()
    assert "cannot read ids/c3" in decided.summary


def test_a_member_with_unreadable_registration_and_ledger_is_reported_for_both(world):
    world.bad_registrations.add("c2")
    world.bad_ledgers.add("c2")

    decided = world.settle()

    assert "the registration of c2 cannot be read, so its partitions stay held; evict it" in decided.summary
    assert "the ledger of c2 cannot be read" in decided.summary


def test_a_live_member_with_an_unreadable_registration_keeps_its_partitions_until_evicted(world):
    world.bad_registrations.add("c2")

    decided = world.settle()

    assert decided.state is GroupState.REBALANCING
    assert "the registration of c2 cannot be read, so its partitions stay held; evict it" in decided.summary
    assert str(world.ledgers["c1"].owned) == "flights[0-3]"

    world.ask(type=RequestType.EVICT, consumer="c2")
    world.check_settled(world.settle())
    assert str(world.ledgers["c1"].owned) == "flights[0-7]"


def test_a_member_that_returned_with_an_unreadable_registration_holds_no_partitions(world):
    world.join("c2")
    world.bad_registrations.add("c2")

    world.settle()

    assert str(world.ledgers["c1"].owned) == "flights[0-7]"


def test_a_member_of_unknown_incarnation_may_still_hold_its_partitions(world):
    world.join("c2")
    world.bad_registrations.add("c2")
    world.tell_bad_incarnations = False

    world.settle()

    assert str(world.ledgers["c1"].owned) == "flights[0-3]"


def test_partitions_that_an_unreadable_ledger_may_hold_are_not_started_until_an_eviction(world):
    world.bad_ledgers.add("c2")
    world.join("c3")

    decided = world.settle()

    assert decided.state is GroupState.REBALANCING
    assert "the ledger of c2 cannot be read" in decided.summary
    assert "evict it" in decided.summary
    assert not world.channels["c2"], "c2 must get no commands"

    world.ask(type=RequestType.EVICT, consumer="c2")
    world.check_settled(world.settle())


def test_partitions_that_others_release_move_despite_an_unreadable_ledger(world):
    world.join("c3")
    world.look()
    world.bad_ledgers.add("c2")
    world.obey_all()

    world.look()

    assert str(world.ledgers["c3"].owned) == "flights[3]"


def test_offsets_are_not_reset_while_a_ledger_is_unreadable(world):
    world.topic("planes", 1)
    world.bad_ledgers.add("c2")
    request = world.ask(type=RequestType.RESET_OFFSETS, offsets={TopicPartition("planes", 0): 0})

    world.look()

    assert world.answer_to(request).result == "refused"
    assert "the ledger of c2 cannot be read" in world.answer_to(request).message


def test_the_unreadable_ledger_of_a_former_member_is_removed(world):
    world.bad_ledgers.add("c2")
    world.leave("c2")

    world.check_settled(world.settle())

    assert sorted(world.ledgers) == ["c1"]


def test_evicting_a_former_member_with_an_unreadable_ledger_succeeds(world):
    world.bad_ledgers.add("c2")
    world.leave("c2")
    request = world.ask(type=RequestType.EVICT, consumer="c2")

    world.look()

    answer = world.answer_to(request)
    assert (answer.result, answer.message) == ("done", "c2 was already gone; its ledger and commands were removed")
    assert sorted(world.ledgers) == ["c1"]


def test_the_summary_names_a_consumer_with_an_unreadable_command(world):
    world.join("c3")
    world.look()
    (command_id, _), *_ = world.channels["c1"]
    broken = Unreadable(layout.command(GROUP, "c1", command_id.name), "not JSON")

    decided = plan(replace(world.observe(), unreadable=(broken,)), ASSIGNORS)

    assert f"c1 cannot read its command {command_id.name}" in decided.summary
    assert "evict it" in decided.summary
    assert "c1 to stop" not in decided.summary
    assert "waiting for c2 to stop" in decided.summary


def test_with_an_unreadable_target_nothing_moves_until_a_rebalance_replaces_it(world):
    world.leave("c2")
    broken = replace(world.observe(), assignment=None, unreadable=(Unreadable(layout.assignment(GROUP), "not JSON"),))
    decided = plan(broken, ASSIGNORS)

    assert "the stored target cannot be read" in decided.summary
    assert not [step for step in decided.steps if isinstance(step, SetTarget | WriteLedgerAndCommands)]

    asked = world.ask(type=RequestType.REBALANCE)
    decided = plan(replace(broken, requests=(asked,)), ASSIGNORS)

    target = next(step for step in decided.steps if isinstance(step, SetTarget))
    assert target.znode_version == -1
    assert target.assignment.generation == 2


class Raising:
    def assign(self, inputs: AssignmentInputs) -> Target:
        raise ZeroDivisionError("no partitions?")


class Answering:
    def __init__(self, answer: object) -> None:
        self.answer = answer

    def assign(self, inputs: AssignmentInputs) -> Target:
        return self.answer  # type: ignore[return-value]


FLIGHTS = PartitionSet({"flights": range(8)})


@pytest.mark.parametrize(
    ("assignor", "fault"),
    [
        (Raising(), "raised ZeroDivisionError('no partitions?')"),
        (Answering(None), "returned a NoneType, not a Target"),
        (Answering(Target({"c9": FLIGHTS})), "named 'c9', which is not a member"),
        (Answering(Target({"c1": FLIGHTS, "c2": FLIGHTS})), "gave partitions of flights to more than one member"),
        (Answering(Target({"c1": PartitionSet()})), "left out or invented partitions of flights (such as [0, 1, 2])"),
        (Answering(Target({"c1": PartitionSet({"flights": range(9)})})), "left out or invented"),
        (Answering(Target({"c1": FLIGHTS | PartitionSet({"planes": [0]})})), "which it does not subscribe to"),
        (Answering(Target({"c1": FLIGHTS}, {"c1": {TopicPartition("flights", 0): 7}})), "does not run that stream"),
        (
            Answering(Target({"c1": FLIGHTS}, {"c2": {TopicPartition("flights", 0): 0}})),
            "which was not given that partition",
        ),
        (Answering(Target({"c1": FLIGHTS}, {"c9": {}})), "which is not a member"),
        (Answering(Target(["c1"])), "raised"),  # type: ignore[arg-type]
    ],
)
def test_sticky_replaces_an_assignor_that_fails_and_the_reason_names_it(world, assignor, fault):
    world.settings = GroupSettings(assignor="mine")

    decided = plan(world.observe(), {**ASSIGNORS, "mine": assignor})

    assert fault in decided.summary
    assert "using sticky" in decided.summary
    target = next(step for step in decided.steps if isinstance(step, SetTarget)).assignment
    assert target.assignor == "sticky"
    assert PartitionSet.of(p for found in target.members.values() for p in found) == FLIGHTS


def test_an_assignor_that_failed_is_not_called_again_while_nothing_changes(world):
    world.settings = GroupSettings(assignor="mine")
    assignors = {**ASSIGNORS, "mine": Raising()}
    for step in plan(world.observe(), assignors).steps:
        world.apply(step)

    assert plan(world.observe(), assignors).steps == ()


def test_sticky_replaces_an_unknown_assignor_and_the_reason_names_it(world):
    world.settings = GroupSettings(assignor="stiky")

    decided = world.look()

    assert "no assignor 'stiky' (known: range, roundrobin, sticky, weighted); using sticky" in decided.summary
    assert decided.state is GroupState.STABLE


def test_members_choose_the_assignor_if_they_agree():
    world = World()
    world.topic("flights", 4)
    world.join("c1", assignor="range")
    world.join("c2", assignor="range")
    world.join("c3")
    world.settle()
    assert world.assignment is not None
    assert world.assignment.assignor == "range"

    world.join("c3", assignor="roundrobin")
    decided = world.look()

    assert "members request different assignors (range, roundrobin); using sticky" in decided.summary
    assert "assignor changed from range to sticky" in decided.summary


def test_the_groups_assignor_setting_has_priority_over_the_members_choice(world):
    world.join("c1", assignor="range")
    world.settings = GroupSettings(assignor="weighted")

    world.settle()

    assert world.assignment is not None
    assert world.assignment.assignor == "weighted"


def test_thirty_thousand_partitions_are_started_in_several_commands_that_fit():
    world = World()
    world.topic("flights", 30_000)
    world.join("c1", Subscription.to({"flights": 3}))

    decided = world.look()

    (step,) = [s for s in decided.steps if isinstance(s, WriteLedgerAndCommands)]
    (command,) = step.commands
    assert isinstance(command, StartFetcher)
    assert 5_000 < len(command.starts) < 30_000
    world.check_settled(world.settle())


def test_a_quarter_of_a_million_partitions_are_stopped_in_commands_that_fit():
    world = World()
    world.topic("flights", 1)
    member = world.join("c1")
    owned = PartitionSet({"flights": range(250_000)})
    world.ledgers["c1"] = Ledger("c1", member.incarnation, owned=owned)

    step = next(s for s in plan(world.observe(), ASSIGNORS).steps if isinstance(s, WriteLedgerAndCommands))

    (command,) = step.commands
    assert isinstance(command, StopFetcher)
    assert 10_000 < len(command.partitions) < 250_000
    assert len(dump(command.to_json())) <= 700_000
    assert len(dump(command.to_json())) + len(dump(step.ledger.to_json())) <= 900_000
    assert step.ledger.owned | step.ledger.stopping == owned


def test_an_eager_members_ledger_gets_the_new_generation_only_with_the_last_part_of_a_stop():
    world = World()
    world.topic("flights", 250_000)
    member = world.join("c1", mode=Mode.EAGER)
    owned = PartitionSet({"flights": range(250_000)})
    world.ledgers["c1"] = Ledger("c1", member.incarnation, owned=owned)

    step = next(s for s in plan(world.observe(), ASSIGNORS).steps if isinstance(s, WriteLedgerAndCommands))

    assert step.ledger.owned
    assert step.ledger.stopping
    assert step.ledger.generation == 0


def test_a_target_too_large_for_a_znode_is_reported_and_stops_no_member():
    world = World()
    world.topic("flights", 4)
    world.join("c1")
    world.check_settled(world.settle())
    for n in range(3800):
        world.join("x" * 240 + f"{n:04}")

    decided = plan(world.observe(), ASSIGNORS)

    assert not [s for s in decided.steps if isinstance(s, SetTarget | WriteLedgerAndCommands)]
    assert f"more than the {MAX_TARGET_BYTES} that a znode may hold" in decided.summary
    assert "split the group or shorten consumer names" in decided.summary


def test_a_fragmented_target_is_computed_again_before_it_gets_too_large():
    """Each of two members owns every other partition of 300,000, which takes 1.9 MB. Two runs would take 40 bytes."""
    world = World()
    world.topic("flights", 300_000)
    members = [world.join(consumer) for consumer in ("c1", "c2")]
    for number, member in enumerate(members):
        held = PartitionSet({"flights": range(number, 300_000, 2)})
        world.ledgers[member.consumer] = Ledger(member.consumer, member.incarnation, owned=held)

    decided = plan(world.observe(), ASSIGNORS)

    target = next(step for step in decided.steps if isinstance(step, SetTarget)).assignment
    assert len(dump(target.to_json())) < 1000
    assert "so it was recomputed from scratch" in decided.summary


def test_reasons_stay_short_even_after_many_changes(world):
    for n in range(500):
        world.join(f"new{n:03}")
        world.topic(f"topic{n:03}", 1)
    world.join("c3", Subscription.matching("topic.*"))

    world.look()

    assert world.assignment is not None
    assert world.assignment.reason.startswith("members c3 new000 new001 new002 and 497 more joined")
    assert len(world.assignment.reason) <= 300
