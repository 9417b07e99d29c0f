"""Tests that the check of the invariants rejects a sound plan with one defect, and names the violated invariant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from kafka_coord.coordinator.steps import GroupState, Plan, SetTarget, Step, WriteLedgerAndCommands
from kafka_coord.model import Ledger, Mode, PartitionSet, Pause, StartFetcher, StartPoint, StopFetcher
from tests.coordinator.plan.invariants import violations, violations_of_ledgers
from tests.coordinator.plan.world import World


def handing_over() -> tuple[World, Plan]:
    """``c1`` has acknowledged the stop of the partitions that ``c2`` gets."""
    world = World()
    world.topic("flights", 6)
    world.join("c1")
    world.settle()
    world.join("c2")
    world.look()
    world.obey("c1")
    return world, world.decide()


def joined() -> tuple[World, Plan]:
    """``c2`` has joined the group of ``c1``, which owns all partitions."""
    world = World()
    world.topic("flights", 6)
    world.join("c1")
    world.settle()
    world.join("c2")
    return world, world.decide()


Change = Callable[[Any], Step | None]


def changed(plan: Plan, change: Change) -> Plan:
    steps = [change(step) for step in plan.steps]
    return replace(plan, steps=tuple(step for step in steps if step is not None))


def ledger_of(consumer: str, change: Callable[[WriteLedgerAndCommands], Step | None]) -> Change:
    return lambda step: (
        change(step) if isinstance(step, WriteLedgerAndCommands) and step.ledger.consumer == consumer else step
    )


def commands(**fields: Any) -> Change:
    def change(step: Any) -> Any:
        if not isinstance(step, WriteLedgerAndCommands):
            return step
        return replace(step, commands=tuple(structs.replace(command, **fields) for command in step.commands))

    return change


def stops_all(step: WriteLedgerAndCommands) -> WriteLedgerAndCommands:
    told = step.commands[0]
    assert isinstance(told, StopFetcher)
    everything = step.ledger.held
    ledger = structs.replace(step.ledger, owned=PartitionSet(), stopping=everything)
    return replace(step, ledger=ledger, commands=(structs.replace(told, partitions=everything),))


def releases_at_once(step: WriteLedgerAndCommands) -> WriteLedgerAndCommands:
    return replace(step, ledger=structs.replace(step.ledger, stopping=PartitionSet()), commands=())


def stops_silently(step: WriteLedgerAndCommands) -> WriteLedgerAndCommands:
    return replace(step, commands=())


def starts_again(step: WriteLedgerAndCommands) -> WriteLedgerAndCommands:
    starts = dict.fromkeys(step.ledger.owned, StartPoint(0))
    return replace(step, commands=(StartFetcher(2, 1, step.ledger.incarnation, starts, "again"),))


def target(**fields: Any) -> Change:
    def change(step: Any) -> Any:
        return (
            replace(step, assignment=structs.replace(step.assignment, **fields))
            if isinstance(step, SetTarget)
            else step
        )

    return change


def test_a_sound_plan_breaks_no_invariant() -> None:
    for world, plan in (handing_over(), joined()):
        assert plan.steps
        assert violations(world.observe(), plan) == []


@pytest.mark.parametrize(
    ("invariant", "situation", "change"),
    [
        ("1", handing_over, ledger_of("c1", lambda _: None)),
        ("2", handing_over, ledger_of("c1", lambda _: None)),
        ("3", handing_over, commands(epoch=99)),
        ("3", joined, target(epoch=99)),
        ("3", handing_over, commands(generation=1)),
        ("4", handing_over, commands(incarnation=1)),
        ("4: the stop-fetcher to c1 names no partition", joined, commands(partitions=PartitionSet())),
        ("4: c1 is told to start", handing_over, ledger_of("c1", starts_again)),
        ("4: the ledger of c1 no longer owns", joined, ledger_of("c1", stops_silently)),
        ("5", joined, target(generation=1)),
        ("6", joined, ledger_of("c1", stops_all)),
        (
            "7",
            joined,
            target(members={"c1": PartitionSet({"flights": range(6)}), "c2": PartitionSet({"flights": [0]})}),
        ),
        ("8", joined, ledger_of("c1", releases_at_once)),
    ],
)
def test_a_damaged_plan_breaks_its_invariant(
    invariant: str, situation: Callable[[], tuple[World, Plan]], change: Change
) -> None:
    world, plan = situation()
    found = violations(world.observe(), changed(plan, change))
    assert any(sentence.startswith(invariant) for sentence in found), found


def test_a_plan_that_moves_partitions_may_not_say_stable() -> None:
    world, plan = joined()
    found = violations(world.observe(), replace(plan, state=GroupState.STABLE))
    assert any(sentence.startswith("7: Stable, but c1") for sentence in found), found


def test_a_plan_may_not_say_stable_if_a_member_owns_too_few_partitions() -> None:
    world, plan = handing_over()
    nothing_started = replace(changed(plan, ledger_of("c2", lambda _: None)), state=GroupState.STABLE)
    found = violations(world.observe(), nothing_started)
    assert "7: Stable, but c2 does not own exactly what the target names" in found


def test_a_plan_may_not_move_partitions_of_a_paused_group() -> None:
    world, plan = joined()
    paused = replace(world.observe(), pause=Pause(by="op"))
    assert "a paused group gets a new target" in violations(paused, plan)
    assert "a member of a paused group gets a command: c1" in violations(paused, plan)


def test_a_plan_may_not_start_an_eager_member_while_another_owns_old_partitions() -> None:
    world, plan = handing_over()
    observed = world.observe()
    eager = {consumer: structs.replace(member, mode=Mode.EAGER) for consumer, member in observed.members.items()}
    behind = ledger_of("c1", lambda step: replace(step, ledger=structs.replace(step.ledger, generation=1)))
    found = violations(replace(observed, members=eager), changed(plan, behind))
    assert "2: eager c2 is told to start while c1 owns flights[0-2] from before" in found, found


def test_a_plan_may_not_start_a_partition_with_an_unreadable_offset() -> None:
    world, plan = handing_over()
    world.bad_offsets = set(plan.started)
    found = violations(world.observe(), plan)
    assert any(sentence.startswith("8:") for sentence in found), found


def test_two_ledgers_with_the_same_partition_are_found() -> None:
    one = Ledger("c1", 1, owned=PartitionSet({"flights": [0, 1]}))
    other = Ledger("c2", 2, stopping=PartitionSet({"flights": [1]}))
    assert violations_of_ledgers({"c1": one}) == []
    assert violations_of_ledgers({"c1": one, "c2": other}) == ["1: flights[1] is held by c1 and by c2"]
