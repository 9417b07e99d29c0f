"""Deliberate trouble, with a bystander: whatever happens, another group must be served."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from kafka_coord.zk import layout
from tests.coordinator.conftest import world
from tests.coordinator.harness import World
from tests.waiting import eventually

__all__ = ["world"]

Said = Callable[..., str]

PROMPTLY_S = 15.0
"""The time within which a bystander must be served: much longer than it takes, much shorter than any timeout."""


@pytest.fixture
def bystander(world: World) -> Callable[[], None]:
    """Asserts that a group without trouble is served promptly: each of two new members gets half of the partitions."""
    count = iter(range(1, 100))
    world.kafka.topic("calm", 4)

    def check() -> None:
        group = f"calm-{next(count)}"
        members = [world.consumer(name, group=group, topics=["calm"]).join() for name in ("x1", "x2")]
        eventually(lambda: [len(m.owned) for m in members] == [2, 2], within_s=PROMPTLY_S)
        eventually(lambda: world.settled(group), within_s=PROMPTLY_S)

    return check


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    """Waits until a line that contains all these words is logged, and returns it."""
    caplog.set_level(logging.INFO)

    def find(*words: str, within_s: float = 15.0) -> str:
        def found() -> str | None:
            lines = [record.getMessage() for record in list(caplog.records)]
            return next((line for line in lines if all(word in line for word in words)), None)

        return eventually(found, within_s=within_s)

    return find


def put(world: World, path: str, data: bytes) -> None:
    """Creates or overwrites a znode, with its parents."""
    world.store.ensure_path(path)
    world.store.set(path, data)


def remove(world: World, path: str) -> None:
    """Deletes a znode with everything below it, as ``deleteall`` of zkCli.sh does."""
    for name in world.children(path):
        remove(world, f"{path}/{name}")
    if world.node(path) is not None:
        world.store.delete(path)


def look(world: World, group: str = "delays") -> None:
    """Makes the coordinator read a group, as an operator's request does, and waits until it has."""
    from kafka_coord.model import Request, RequestType

    assert world.ask(Request(RequestType.LOOK, group=group)).result == "done"


def registered(world: World, name: str, group: str = "delays") -> bool:
    return world.node(layout.registration(group, name)) is not None
