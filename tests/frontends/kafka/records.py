"""Creates a topic with records for stock clients, reads it, and looks at the groups that do."""

from __future__ import annotations

import itertools
import time

from confluent_kafka import Consumer, Producer

from kafka_coord import Consumer as CoordConsumer
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.groups.copies import KafkaOffsetStore
from kafka_coord.model import GroupKind
from kafka_coord.zk.kinds import read_kinds
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


def member(servers: str, group: str, topic: str, **more: object) -> Consumer:
    settings = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "session.timeout.ms": 6_000}
    made = Consumer({"bootstrap.servers": servers, "group.id": group, **settings, **more})
    made.subscribe([topic])
    return made


def consumed(servers: str, group: str, topic: str, count: int, **more: object) -> list[int]:
    """Reads ``count`` records as the only member, and commits after them."""
    one = member(servers, group, topic, **more)
    try:
        eventually(lambda: one.poll(0.05) or one.assignment(), within_s=60) if not count else None
        found = read([one], count)
        if found:
            one.commit(asynchronous=False)
        return found
    finally:
        one.close()


def members(servers: str, group: str) -> list[str]:
    """The client ids of the group's members, as its coordinator behind ``servers`` describes them."""
    found = KafkaOffsetStore("there", servers, {}, 30.0).read([group])[group]
    assert not found.problem
    return sorted(found.members)


def kind(front: Front, group: str) -> GroupKind | None:
    record = read_kinds(front.store, [group]).get(group)
    return None if record is None else record.kind
