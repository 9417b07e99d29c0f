"""Consumers with real brokers and a real ZooKeeper. The test acts as the coordinator."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from kafka_coord import Consumer
from kafka_coord.dev.cluster.kafka import KafkaCluster
from kafka_coord.model import TopicPartition
from kafka_coord.zk import connect
from kafka_coord.zk.session import KazooStore
from tests.consumer.by_hand import HandCoordinator
from tests.waiting import write

_groups = itertools.count(1)


@pytest.fixture
def group() -> str:
    return f"group-{next(_groups)}"


@pytest.fixture
def store(kafka_cluster: KafkaCluster) -> Iterator[KazooStore]:
    """The test's own session on the brokers' ZooKeeper."""
    store = connect(kafka_cluster.zookeeper, session_timeout_ms=10_000)
    yield store
    store.close()


@pytest.fixture
def coordinator(store: KazooStore, group: str) -> HandCoordinator:
    return HandCoordinator(store, group)


@pytest.fixture
def make_consumer(kafka_cluster: KafkaCluster, group: str) -> Iterator[Callable[..., Consumer]]:
    """Makes consumers of this test's group (``make_consumer(topics=[…], …)``), and closes them when the test ends."""
    made: list[Consumer] = []

    def make(**settings: object) -> Consumer:
        arguments = {"group": group, "auto_offset_reset": "earliest", "session_timeout_ms": 10_000, **settings}
        if "store" not in arguments:
            arguments.setdefault("zookeeper", kafka_cluster.zookeeper)
        consumer = Consumer(**arguments)  # type: ignore[arg-type]
        made.append(consumer)
        return consumer

    yield make
    for consumer in made:
        consumer.close()


@pytest.fixture
def produce(kafka_cluster: KafkaCluster) -> Iterator[Callable[..., list[bytes]]]:
    """Writes records (``produce(topic, partition, count)``), and returns their values."""
    producer = Producer(
        {
            "bootstrap.servers": kafka_cluster.bootstrap_servers,
            "linger.ms": 1,
            "enable.idempotence": True,  # so that a retry to another leader writes no duplicates
            "log_level": 0,
        }
    )
    numbers = itertools.count()

    def written(topic: str, partition: int, count: int) -> list[bytes]:
        values = [b"%s-%d:%d" % (topic.encode(), partition, next(numbers)) for _ in range(count)]
        write(producer, topic, partition, values)
        return values

    yield written
    producer.flush(5)


def partitions_of(topic: str, *numbers: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]
