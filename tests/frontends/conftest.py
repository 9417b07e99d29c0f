from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafka_coord.frontends.socket.access import GatewayOptions
from tests.coordinator.harness import World
from tests.frontends.harness import HandConsumer, SocketInstance


@pytest.fixture
def world(zk_hosts: str) -> Iterator[World]:
    """This test's own chroot on a real ZooKeeper, with a topic ``flights`` of four partitions."""
    made = World(zk_hosts)
    made.kafka.topic("flights", 4)
    yield made
    made.close()


@pytest.fixture
def instance(world: World) -> Iterator[Callable[..., SocketInstance]]:
    """Makes instances that listen for consumers, and stops them afterwards."""
    made: list[SocketInstance] = []

    def make(broker_id: int = 1, options: GatewayOptions | None = None, **security: Any) -> SocketInstance:
        made.append(SocketInstance(world.hosts, broker_id, options, **security))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def connect() -> Iterator[Callable[[SocketInstance], HandConsumer]]:
    """Makes consumers whose frames the test sends one by one, and closes their connections afterwards."""
    made: list[HandConsumer] = []

    def make(instance: SocketInstance) -> HandConsumer:
        made.append(HandConsumer(instance.server.address))
        return made[-1]

    yield make
    for one in made:
        one.close()
