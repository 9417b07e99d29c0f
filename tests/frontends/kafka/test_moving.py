"""The group moves to another instance just before a stock consumer asks for its committed offsets (ADR 11)."""

from __future__ import annotations

import pytest
from confluent_kafka import OFFSET_STORED, Consumer, Message, TopicPartition

from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.kafka.librdkafka import produce
from tests.frontends.kafka.conftest import Front
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]

COMMITTED = 50


def fill(front: Front, topic: str, partitions: int, records: int) -> None:
    """Creates the topic, and writes ``records`` records into each partition."""
    TopicAdmin(front.brokers).create(topic, partitions)
    for number in range(partitions):
        produce(front.brokers, topic, [(None, b"")] * records, partitions=[number])


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_every_partition_is_read_from_its_committed_offset_after_the_group_moves(front: Front, protocol: str) -> None:
    topic = group = f"moving-{protocol}"
    fill(front, topic, partitions=3, records=100)
    settings = {
        "bootstrap.servers": front.bootstrap,
        "group.id": group,
        "auto.offset.reset": "latest",
        "enable.auto.commit": False,
        "group.protocol": protocol,
    }
    if protocol == "classic":
        settings |= {
            "heartbeat.interval.ms": 14_000,
            "session.timeout.ms": 45_000,
        }  # so that no heartbeat tells it about the move
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition(topic, number, COMMITTED) for number in range(3)], asynchronous=False)
    consumer.subscribe([topic], on_assign=lambda *_: front.move(group))
    read: list[Message] = []

    def done() -> bool:
        read.extend(one for one in consumer.consume(100, 0.1) if one.error() is None)
        return len(read) >= 150

    try:
        eventually(done, within_s=60)
    finally:
        consumer.close()
    assert sorted((one.partition(), one.offset()) for one in read) == [
        (number, offset) for number in range(3) for offset in range(COMMITTED, 100)
    ]


def test_a_consumer_that_assigns_its_own_partitions_finds_the_new_coordinator(front: Front) -> None:
    topic = group = "moving-assigned"
    fill(front, topic, partitions=2, records=1)
    settings = {"bootstrap.servers": front.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"enable.auto.commit": False})  # a commit would find the coordinator first

    def reads(number: int) -> bool:
        found = consumer.poll(0.2)
        return found is not None and found.error() is None and found.partition() == number

    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_STORED)])
        eventually(lambda: reads(0))
        front.move(group)
        consumer.assign([TopicPartition(topic, 1, OFFSET_STORED)])
        eventually(lambda: reads(1))
    finally:
        consumer.close()
