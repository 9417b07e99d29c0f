"""Runs the servers of the benchmark: ZooKeeper, brokers, and an instance beside each broker."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kafka_coord.dev.bench.kafka_groups.client import RawClient
from kafka_coord.dev.bench.kafka_groups.members import await_coordinator
from kafka_coord.dev.bench.usage import memory_mib
from kafka_coord.dev.cluster.coordinator import begin_tree, serve_command
from kafka_coord.dev.cluster.kafka import Broker, KafkaCluster, KafkaSettings
from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from kafka_coord.errors import BrokerError
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.grouplog.term import PARTITIONS

INSTANCE, KAFKA = "instance", "kafka"
"""Which server answers."""
_FIRST_DELAY_MS = "1000"
"""``group.initial.rebalance.delay.ms`` of the instance and the broker, so that members that start together end up in
one generation."""
_SETTINGS = {
    "offsets.topic.num.partitions": str(PARTITIONS),
    "group.initial.rebalance.delay.ms": _FIRST_DELAY_MS,
    "num.network.threads": "3",
    "num.io.threads": "8",
}
"""All other settings are Kafka's defaults, because the settings of a development cluster would be unfair to Kafka."""
_AS_IN_PRODUCTION = ("-XX:TieredStopAtLevel=4",)
"""Lets the JVM compile the broker's code fully, which costs more than it gives in a short run."""


def groups_in(partition: int) -> Iterator[str]:
    """Yields an endless sequence of group names that belong to ``partition`` of the groups log."""
    return (name for number in itertools.count() if partition_of(name := f"bench-{number}") == partition)


def groups_everywhere() -> list[str]:
    """Returns one group name for each partition of the groups log."""
    return [next(groups_in(partition)) for partition in range(PARTITIONS)]


class KafkaInstance:
    """A ``serve`` process beside a broker, with its listener for Kafka clients. With ``holds``, it holds heartbeats."""

    def __init__(self, directory: Path, broker: Broker, *, holds: bool) -> None:
        self.broker = broker
        self.address = broker.instance_address
        self.log = directory / f"instance-{broker.broker_id}.log"
        command = [
            *serve_command(broker),
            *("--kafka-initial-rebalance-delay-ms", _FIRST_DELAY_MS),
            "--kafka-hold-heartbeats" if holds else "--no-kafka-hold-heartbeats",
        ]
        self.process = ChildProcess(f"instance-{broker.broker_id}", command, self.log)

    def memory_mib(self) -> float:
        return memory_mib(self.process.pid)


@dataclass(frozen=True, slots=True)
class Servers:
    """The running servers. ``zookeeper`` is a connect string, and ``directory`` contains the logs."""

    directory: Path
    zookeeper: str
    cluster: KafkaCluster
    instances: Mapping[int, KafkaInstance]

    @property
    def broker(self) -> Broker:
        return self.cluster.brokers[0]

    @property
    def instance(self) -> KafkaInstance:
        return self.instances[self.broker.broker_id]

    def answering(self, by: str) -> int | None:
        """Returns the process id of the broker or of its instance, whichever ``by`` names."""
        return self.broker.pid if by == KAFKA else self.instance.process.pid

    def make_topic(self, name: str, partitions: int) -> None:
        TopicAdmin(self.broker.address).create(name, partitions)


@contextmanager
def started(
    directory: Path, brokers: int = 1, *, holds: bool = True, as_in_production: bool = True, kraft: bool = False
) -> Iterator[Servers]:
    """Starts all servers. With a single broker, waits until its instance coordinates every group. With ``holds``, the
    instances hold heartbeats. Only with ``as_in_production`` is the brokers' code compiled fully. With
    ``kraft``, they run Kafka 4.3."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = KafkaSettings(
        kraft=kraft,
        replication=brokers,
        heap_mb=512,
        for_instances=True,
        properties=_SETTINGS,
        jvm_flags=_AS_IN_PRODUCTION if as_in_production else (),
    )
    with ExitStack() as running:
        zookeeper = running.enter_context(
            ZooKeeperServer(directory / "zookeeper", settings=ZooKeeperSettings(heap_mb=256))
        )
        cluster = running.enter_context(
            KafkaCluster(directory, zookeeper.connect_string, brokers=brokers, settings=settings)
        )
        if kraft:
            begin_tree(cluster.zookeeper, cluster.bootstrap_servers)
        instances = {broker.broker_id: KafkaInstance(directory, broker, holds=holds) for broker in cluster.brokers}
        for instance in instances.values():
            running.callback(instance.process.stop)
            instance.process.start()
        found = Servers(directory, zookeeper.connect_string, cluster, instances)
        for instance in instances.values():
            instance.process.wait_until(lambda one=instance: listens(one), 60.0)  # type: ignore[misc]
        if brokers == 1:
            await_coordinator(found.instance.address, groups_everywhere())
        yield found


def listens(instance: KafkaInstance) -> bool:
    try:
        RawClient(instance.address).close()
    except BrokerError:
        return False
    return True
