"""Coordinators and consumers on a three-server ensemble, where servers fail over and replies lag."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from kafka_coord.model import TopicPartition
from tests.containers.ensemble import ContainerEnsemble
from tests.coordinator.harness import World
from tests.coordinator.rebalance_scenarios import SCENARIOS
from tests.waiting import eventually
from tests.zk.sessions import create_chroot

pytestmark = pytest.mark.containers

_chroots = itertools.count(1)


@pytest.fixture
def world(container_ensemble: ContainerEnsemble) -> Iterator[World]:
    hosts = create_chroot(container_ensemble.connect_string, f"/channel-{next(_chroots)}", connect_timeout_s=60)
    made = World(hosts)
    made.kafka.topic("flights", 4)
    yield made
    made.close()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_channel(scenario: Callable[[World], None], world: World):
    scenario(world)


def test_a_rebalance_survives_the_zookeeper_leader(container_ensemble: ContainerEnsemble, world: World):
    world.instance(1).start_elected()
    world.instance(2).start()
    c1, c2 = world.consumer("c1").join(), world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)
    for consumer in (c1, c2):
        consumer.position = {TopicPartition("flights", p): 70 + p for p in range(4)}
    leading = container_ensemble.leader()
    assert leading is not None
    c3 = world.consumer("c3", rejoin_grace_ms=0)

    leading.kill()
    eventually(lambda: container_ensemble.leader() not in (None, leading), within_s=30, every_s=0.1)
    c3.join()

    def all_owned() -> bool:
        """Sessions may have ended or not. In either case, each partition has one owner, and offsets are kept."""
        owned = world.owned()
        return (
            world.settled() is not None
            and "c3" in owned
            and sorted(p for o in owned.values() for _, p in o) == [0, 1, 2, 3]
        )

    eventually(all_owned, within_s=30)
    assert all(c3.started[tp] == 70 + tp.partition for tp in c3.owned)
