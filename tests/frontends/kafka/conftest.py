"""The tests of this folder share three brokers. Each has an instance's listener for Kafka clients beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.dev.cluster.kafka import Broker, KafkaCluster, KafkaSettings
from kafka_coord.dev.cluster.leadership import move_leadership
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from kafka_coord.errors import NodeExists, NoNode
from kafka_coord.frontends.kafka.listener import KafkaListener
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.grouplog.term import PARTITIONS, TOPIC
from kafka_coord.groups.requests import ask
from kafka_coord.model import GroupKind, Process, Request, RequestType
from kafka_coord.zk import connect, layout
from kafka_coord.zk.instance import InstanceRegistration
from kafka_coord.zk.kinds import read_kinds
from kafka_coord.zk.store import Store
from tests.cli.running import Run, run
from tests.conftest import brokers_of_a_run
from tests.coordinator.harness import FAST
from tests.frontends.kafka.java import KafkaTools, kafka_tools
from tests.waiting import eventually

LIMITS = {"initial_rebalance_delay_s": 0}
ELECTED = 1
"""The broker id of the elected coordinator."""


@dataclass
class Front:
    """The cluster, and the listeners by broker id."""

    cluster: KafkaCluster
    store: Store
    listeners: dict[int, KafkaListener]
    ensemble: ZooKeeperServer | None = None
    """The only ZooKeeper server, unless other tests share the cluster."""

    @property
    def bootstrap(self) -> str:
        return ",".join(listener.address for listener in self.listeners.values())

    @property
    def brokers(self) -> str:
        return self.cluster.bootstrap_servers

    def coordinator(self, partition: int) -> int:
        """The broker id of the instance that coordinates the groups of this partition of the log."""
        return next(iter(self.listeners.values())).instances.leaders[partition]

    def serving(self, group: str) -> KafkaListener:
        """The listener that coordinates the group."""
        return self.listeners[self.coordinator(partition_of(group))]

    def start(self, broker_id: int, **options: Any) -> KafkaListener:
        broker = self.cluster.broker(broker_id)
        at, behind = f"127.0.0.1:{broker.instance_port}", f"127.0.0.1:{broker.listener_port}"
        self.listeners[broker_id] = KafkaListener(at, behind, self.store, broker_id, group_limits=LIMITS, **options)
        self.publish(broker_id)
        return self.listeners[broker_id]

    def publish(self, broker_id: int) -> None:
        """Registers the instance, as ``serve`` does. Does nothing if a process of a test is registered in its place."""
        self.store.ensure_path(layout.COORDINATORS)
        endpoints = {"kafka": self.listeners[broker_id].address}
        with contextlib.suppress(NodeExists):
            InstanceRegistration(self.store, broker_id, endpoints, lambda: None).register()

    @property
    def of_elected(self) -> Mapping[str, str]:
        """The endpoints of the elected coordinator's instance. The coordinator publishes them itself."""
        return {"kafka": self.listeners[ELECTED].address}

    @property
    def others(self) -> dict[int, KafkaListener]:
        """The listeners of the other instances."""
        return {number: one for number, one in self.listeners.items() if number != ELECTED}

    def move(self, group: str) -> None:
        """Moves the group to another instance."""
        partition = partition_of(group)
        _, leader = move_leadership(self.brokers, TOPIC, partition)
        eventually(lambda: self.listeners[leader].managed.knows(group), within_s=60)
        others = [one for broker, one in self.listeners.items() if broker != leader]
        eventually(lambda: not any(one.managed.knows(group) for one in others), within_s=60)

    def convert(self, group: str, to: GroupKind) -> None:
        """Waits until the members are all back. Raises :class:`RequestRefused`."""
        asked = Request(RequestType.CONVERT_GROUP, group=group, to=to, reason="a test", by="test")
        ask(self.store, asked, 60.0, lambda _: None)
        eventually(lambda: not read_kinds(self.store, [group])[group].is_returning, within_s=60)

    def stop(self, broker_id: int) -> None:
        with contextlib.suppress(NoNode):
            node = self.store.get(layout.instance(broker_id))
            if node.stat.ephemeral_owner == self.store.session.session_id:
                self.store.delete(layout.instance(broker_id))
        self.listeners.pop(broker_id).close()

    def serves_every_group(self) -> bool:
        return sum(map(known_partitions, self.listeners.values())) == PARTITIONS


def known_partitions(listener: KafkaListener) -> int:
    """The number of partitions of the groups log in which the instance has found the groups of earlier terms."""
    return sum(served.knows_groups for served in list(listener.managed._served.values()))


def end_term(front: Front, partition: int) -> None:
    """Makes the instance give up the partition of the log, and waits until it has claimed the partition again."""
    listener = front.listeners[front.coordinator(partition)]
    term = listener.manager.terms[partition]
    listener._call(listener.manager.resign, partition, "a test wants it")
    eventually(lambda: listener.manager.terms.get(partition) not in {None, term})


@pytest.fixture(scope="package")
def front(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Front]:
    shared = request.config.option.kraft
    place = tmp_path_factory.mktemp("kafka-front")
    with beside(request.getfixturevalue("three_brokers")) if shared else started(place) as made:
        yield made


@pytest.fixture
def listener(front: Front, group: str) -> KafkaListener:
    """The listener that coordinates the test module's ``group``."""
    return front.serving(group)


@pytest.fixture(scope="package")
def tools() -> Iterator[KafkaTools]:
    with kafka_tools() as made:
        yield made


@contextlib.contextmanager
def elected(front: Front, endpoints: Mapping[str, str]) -> Iterator[CoordinatorService]:
    """Starts a coordinator that can be elected, and waits until it is registered."""
    endpoints = endpoints or front.of_elected
    made = CoordinatorService(front.store, ELECTED, endpoints, FAST, process=Process("here", 1, "test", 0))
    made.start()
    try:
        eventually(lambda: made.registered)
        yield made
    finally:
        made.stop()
        if ELECTED in front.listeners:
            front.publish(ELECTED)


@pytest.fixture(scope="module")
def service(front: Front) -> Iterator[CoordinatorService]:
    """The elected coordinator."""
    with elected(front, {}) as made:
        eventually(lambda: made.leads)
        yield made


@pytest.fixture(scope="module")
def coord(front: Front) -> Iterator[Run]:
    """Runs operators' commands on the cluster."""
    with published(front.store, front.listeners):
        yield partial(run, zookeeper=front.cluster.zookeeper)


def described(coord: Run, group: str) -> tuple[str, dict[int, int]]:
    """The group's kind and its committed offsets by partition, according to ``groups describe``."""
    found = coord("groups", "describe", group, "-o", "json").json()
    return found["kind"], {one["partition"]: one["committed_offset"] for one in found["offsets"]}


@contextlib.contextmanager
def started(
    directory: Path,
    cluster_of: Callable[[Path, str, int, KafkaSettings], AbstractContextManager[KafkaCluster]] = brokers_of_a_run,
) -> Iterator[Front]:
    settings = KafkaSettings(replication=3, for_instances=True)
    with (
        ZooKeeperServer(directory / "zookeeper", settings=ZooKeeperSettings(tick_ms=200)) as server,
        cluster_of(directory, server.connect_string, 3, settings) as cluster,
        beside(cluster, server) as made,
    ):
        yield made


@contextlib.contextmanager
def beside(cluster: KafkaCluster, ensemble: ZooKeeperServer | None = None) -> Iterator[Front]:
    """Starts the listeners beside the brokers."""
    store = connect(cluster.zookeeper)
    made = Front(cluster, store, {}, ensemble)
    try:
        for broker in cluster.brokers:
            made.start(broker.broker_id)
        eventually(made.serves_every_group, within_s=60)
        yield made
    finally:
        for broker_id in list(made.listeners):
            made.stop(broker_id)
        store.close()


@contextlib.contextmanager
def serving_beside(
    broker: Broker, zookeeper: str, *, session_timeout_ms: int = 10_000, **options: Any
) -> Iterator[KafkaListener]:
    """A listener with its own session beside the only broker of a cluster. It serves every group."""
    store = connect(zookeeper, session_timeout_ms=session_timeout_ms)
    try:
        at, behind = f"127.0.0.1:{broker.instance_port}", f"127.0.0.1:{broker.listener_port}"
        listener = KafkaListener(at, behind, store, broker.broker_id, group_limits=LIMITS, **options)
        try:
            eventually(lambda: known_partitions(listener) == PARTITIONS, within_s=60)
            with published(store, {broker.broker_id: listener}):
                yield listener
        finally:
            listener.close()
    finally:
        store.close()


@contextlib.contextmanager
def published(store: Store, listeners: Mapping[int, KafkaListener]) -> Iterator[None]:
    """Publishes in ZooKeeper the addresses at which the instances serve Kafka clients, as ``serve`` does, except those
    that are published already. The keys of ``listeners`` are broker ids."""
    store.ensure_path(layout.COORDINATORS)
    made = [
        InstanceRegistration(store, broker_id, {"kafka": listener.address}, lambda: None)
        for broker_id, listener in listeners.items()
        if store.exists(layout.instance(broker_id)) is None
    ]
    for one in made:
        one.register()
    try:
        yield
    finally:
        for one in made:
            one.unregister()
