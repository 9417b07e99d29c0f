"""Tests of the causes of new targets in the history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kafka_coord.coordinator.steps import SetTarget
from kafka_coord.model import Cause, Departure, DepartureKind, GroupSettings, RequestType, Subscription
from kafka_coord.model.member import EXPIRED, LEFT
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
        (lambda world: world.leave("c1", EXPIRED), (Cause.MEMBER_EXPIRED,)),
        (lambda world: world.leave("c1", Departure(DepartureKind.REPLACED)), (Cause.MEMBER_REPLACED,)),
        (lambda world: world.leave("c1", Departure(DepartureKind.EVICTED)), (Cause.MEMBER_EVICTED,)),
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


def test_a_static_kafka_client_that_crashed_has_expired_and_nobody_waited_for_it() -> None:
    world = settled()
    world.join("c3", rejoin_grace_ms=1000, protocol="consumer")
    world.settle()
    world.leave("c3", Departure(DepartureKind.EXPIRED, 1000))
    world.end_grace("c3")
    (step,) = [step for step in world.look().steps if isinstance(step, SetTarget)]
    assert step.causes == (Cause.MEMBER_EXPIRED,)
    assert "did not return" not in step.assignment.reason


def test_a_reason_says_how_each_member_went_and_by_whom() -> None:
    world = settled()
    for consumer in ("c3", "c4", "c5", "c6"):
        world.join(consumer)
    world.settle()
    world.leave("c1", Departure(DepartureKind.EXPIRED, 10_000))
    world.leave("c3", LEFT)
    world.leave("c4", Departure(DepartureKind.REPLACED, by="User:bob (client id two, 10.0.0.5:1)"))
    world.leave("c5", Departure(DepartureKind.EVICTED, by="User:ann (client id admin, 10.0.0.6:1)"))
    world.ask(type=RequestType.EVICT, consumer="c6", reason="stuck", by="alice@host")
    (step,) = [step for step in world.look().steps if isinstance(step, SetTarget)]
    assert step.assignment.reason == (
        "members c5 evicted by User:ann (client id admin, 10.0.0.6:1), c1 expired after 10 s, c3 left, "
        "c4 replaced by User:bob (client id two, 10.0.0.5:1), c6 evicted (operator asked: stuck, by alice@host)"
    )


@pytest.mark.parametrize(
    ("how", "said"), [(LEFT, "left"), (Departure(DepartureKind.EXPIRED, 10_000), "expired after 10 s")]
)
def test_the_last_member_too_has_left_or_expired(how: Departure, said: str) -> None:
    world = World()
    world.topic("flights", 4)
    world.join("c1")
    world.settle()
    world.leave("c1", how)
    (step,) = [step for step in world.look().steps if isinstance(step, SetTarget)]
    assert step.assignment.reason == f"no members remain (c1 {said})"


def test_each_of_the_last_members_has_its_own_reason() -> None:
    world = World()
    world.topic("flights", 4)
    for consumer in ("c1", "c2"):
        world.join(consumer)
    world.settle()
    world.ask(type=RequestType.EVICT, consumer="c1", reason="stuck", by="alice@host")
    world.ask(type=RequestType.EVICT, consumer="c2", reason="moved", by="alice@host")
    (step,) = [step for step in world.look().steps if isinstance(step, SetTarget)]
    assert step.assignment.reason == (
        "no members remain (c1 evicted (operator asked: stuck, by alice@host), c2 evicted (operator asked: moved, by"
        " alice@host))"
    )
