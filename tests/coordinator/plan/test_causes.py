"""Tests of the causes of new targets in the history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kafka_coord.coordinator.steps import SetTarget
from kafka_coord.model import Cause, GroupSettings, RequestType, Subscription
from tests.coordinator.plan.world import World


def settled() -> World:
    world = World()
    world.topic("flights", 4)
    world.join("c1")
    world.join("c2", rejoin_grace_ms=1000)
    world.settle()
    return world


def loses_its_grace(world: World) -> None:
    world.leave("c2")
    world.end_grace("c2")


def is_slow(world: World) -> None:
    world.join("c3")
    world.look()
    world.overdue = {consumer for consumer, commands in world.channels.items() if commands}


@pytest.mark.parametrize(
    ("happening", "causes"),
    [
        (lambda world: world.join("c3"), (Cause.MEMBER_JOINED,)),
        (lambda world: world.leave("c1"), (Cause.MEMBER_LEFT,)),
        (loses_its_grace, (Cause.GRACE_ENDED,)),
        (is_slow, (Cause.MEMBER_EVICTED,)),
        (lambda world: world.ask(type=RequestType.EVICT, consumer="c1"), (Cause.MEMBER_EVICTED,)),
        (lambda world: world.ask(type=RequestType.REBALANCE), (Cause.OPERATOR,)),
        (lambda world: world.topic("flights", 6), (Cause.TOPIC_CHANGED,)),
        (lambda world: world.recreate("flights", 4), (Cause.TOPIC_CHANGED,)),
        (lambda world: world.join("c1", Subscription.to(["flights"], 2)), (Cause.MEMBER_CHANGED,)),
        (lambda world: setattr(world, "settings", GroupSettings(assignor="range")), (Cause.ASSIGNOR_CHANGED,)),
        (
            lambda world: (world.join("c3"), world.leave("c1"), world.topic("flights", 6)),
            (Cause.MEMBER_JOINED, Cause.MEMBER_LEFT, Cause.TOPIC_CHANGED),
        ),
        (lambda world: (world.leave("c1"), loses_its_grace(world)), (Cause.MEMBER_LEFT,)),
    ],
)
def test_every_decision_has_its_causes(happening: Callable[[World], object], causes: tuple[Cause, ...]) -> None:
    world = settled()
    happening(world)
    (step,) = [step for step in world.look().steps if isinstance(step, SetTarget)]
    assert step.causes == causes
