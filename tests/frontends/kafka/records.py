"""Creates a topic with records for stock clients, and reads it."""

from __future__ import annotations

import itertools
import time

from confluent_kafka import Consumer, Producer

from kafka_coord import Consumer as CoordConsumer
from kafka_coord.dev.cluster.topics import TopicAdmin
from tests.frontends.kafka.conftest import Front
from tests.waiting import eventually

RECORDS, PARTITIONS = 3_000, 6
_numbers = itertools.count(1)


def filled(front: Front) -> str:
    """Creates a topic, and writes all records to it through the instances."""
    name = f"stock-{next(_numbers)}"
    TopicAdmin(front.cluster.bootstrap_servers).create(name, PARTITIONS, replication=3)
    producer = Producer({"bootstrap.servers": front.bootstrap, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(name, key=str(number), value=str(number))
    assert producer.flush(60) == 0
    return name


def managed_group(front: Front, topic: str, name: str) -> str:
    """Creates a managed group: a consumer of this project joins it and leaves again. Returns its name."""
    with CoordConsumer(zookeeper=front.cluster.zookeeper, group=name, topics=[topic]) as own:
        eventually(lambda: own.poll(0.05) or len(own.assignment()) == PARTITIONS, within_s=30)
    return name


def read(consumers: list[Consumer], count: int, within_s: float = 60.0) -> list[int]:
    found: list[int] = []
    deadline = time.monotonic() + within_s
    while len(found) < count and time.monotonic() < deadline:
        for one in consumers:
            found += [int(m.value()) for m in one.consume(500, 0.05) if not m.error()]
    return found
