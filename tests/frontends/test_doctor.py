"""The doctor's findings about the socket channel."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.groups.cluster import read_cluster
from kafka_coord.groups.state import read_groups
from kafka_coord.monitor.doctor import Finding, Severity
from kafka_coord.monitor.doctor.instances import check_channel
from kafka_coord.zk.store import Store
from tests.coordinator.harness import FAST, World, open_store
from tests.frontends.harness import HandConsumer, SocketInstance
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper

Instances = Callable[..., SocketInstance]
Connect = Callable[[SocketInstance], HandConsumer]
Deaf = Callable[[int], CoordinatorService]


def checked(world: World) -> list[tuple[Severity, str]]:
    store = open_store(world.hosts)
    try:
        cluster = read_cluster(store)
        found: list[Finding] = list(check_channel(cluster, read_groups(store, cluster.groups, cluster)))
    finally:
        store.close()
    assert all(one.todo for one in found if one.severity in (Severity.WARNING, Severity.ERROR))
    return [(one.severity, one.what) for one in found]


@pytest.fixture
def deaf(world: World) -> Iterator[Callable[[int], CoordinatorService]]:
    """Starts instances that do not listen for consumers without ZooKeeper."""
    made: list[tuple[CoordinatorService, Store]] = []

    def make(broker_id: int) -> CoordinatorService:
        store = open_store(world.hosts)
        service = CoordinatorService(store, broker_id, {}, FAST)
        made.append((service, store))
        service.start()
        eventually(lambda: service.registered)
        return service

    yield make
    for service, store in made:
        service.stop()
        store.close()


def test_there_are_no_findings_if_no_instance_listens_and_no_member_uses_sockets(world: World, deaf: Deaf) -> None:
    service = deaf(1)
    eventually(lambda: service.leads)
    assert checked(world) == []


def test_there_is_no_warning_about_an_instance_that_listens_and_answers(
    world: World, instance: Instances, connect: Connect
) -> None:
    consumer = connect(instance(1).start_elected())
    consumer.register("delays", "c1")
    assert checked(world) == [(Severity.OK, "1 instances answer consumers; 1 socket consumers are registered")]


def test_an_instance_that_does_not_listen_causes_a_warning(world: World, instance: Instances, deaf: Deaf) -> None:
    instance(1).start_elected()
    deaf(2)
    (first, _) = checked(world)
    assert first == (
        Severity.WARNING,
        "instance 2 does not listen for consumers, so electing it would disconnect consumers without ZooKeeper",
    )


def test_an_instance_that_does_not_answer_causes_a_warning(world: World, instance: Instances) -> None:
    one = instance(1).start_elected()
    one.server.close()
    ((severity, what),) = checked(world)
    assert severity is Severity.WARNING
    assert what.startswith(f"instance 1 does not answer consumers at {one.server.address}")


def test_socket_members_without_a_listening_coordinator_cause_an_error(
    world: World, instance: Instances, connect: Connect, deaf: Deaf
) -> None:
    one = instance(1).start_elected()
    connect(one).register("delays", "c1")
    one.stop()
    service = deaf(2)
    eventually(lambda: service.leads)
    assert checked(world)[0][0] is Severity.ERROR
