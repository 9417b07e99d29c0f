"""Coordinators and consumers on a three-server ensemble, where servers fail over and replies lag."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from kafka_coord.model import TopicPartition
from kafka_coord.zk.session import connect
from tests.containers.ensemble import ContainerEnsemble
from tests.coordinator import test_rebalance, test_requests
from tests.coordinator.harness import World
from tests.waiting import eventually

pytestmark = pytest.mark.containers

_chroots = itertools.count(1)

SCENARIOS = (
    test_rebalance.test_a_second_member_takes_half_and_nothing_else_is_touched,
    test_rebalance.test_nobody_is_started_before_the_owner_has_acknowledged,
    test_rebalance.test_a_leaving_member_hands_over_what_it_committed,
    test_rebalance.test_a_vanished_member_is_replaced_after_its_session,
    test_rebalance.test_a_member_that_returns_within_its_grace_gets_its_own_back,
    test_rebalance.test_a_consumer_that_does_not_acknowledge_is_evicted,
    test_rebalance.test_a_recreated_topic_starts_anew_and_its_predecessors_offsets_are_gone,
    test_requests.test_an_operator_can_make_the_coordinator_resign,
)


@pytest.fixture
def world(container_ensemble: ContainerEnsemble) -> Iterator[World]:
    hosts = f"{container_ensemble.connect_string}/channel-{next(_chroots)}"
    connect(hosts, create_chroot=True, connect_timeout_s=60).close()
    made = World(hosts)
    made.kafka.topic("flights", 4)
    yield made
    made.close()


@pytest.fixture
def settled(world: World) -> World:
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    return world


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__.removeprefix("test_"))
def test_channel(scenario, request: pytest.FixtureRequest):
    wants_settled = scenario is test_requests.test_an_operator_can_make_the_coordinator_resign
    scenario(request.getfixturevalue("settled" if wants_settled else "world"))


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
        """Sessions may have ended or not: what counts is that each partition has one owner, where offsets were kept."""
        owned = world.owned()
        return (
            world.settled() is not None
            and "c3" in owned
            and sorted(p for o in owned.values() for _, p in o) == [0, 1, 2, 3]
        )

    eventually(all_owned, within_s=30)
    assert all(c3.started[tp] == 70 + tp.partition for tp in c3.owned)
