"""A consumer obeys start-fetcher and stop-fetcher: what is handed out, committed and acknowledged when."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kafka_coord import Consumer, TopicPartition
from kafka_coord.consumer.record import Record
from tests.consumer.by_hand import HandCoordinator

pytestmark = pytest.mark.kafka

Produce = Callable[..., list[bytes]]
MakeConsumer = Callable[..., Consumer]
MakeTopic = Callable[..., str]


def read(consumer: Consumer, count: int) -> list[Record]:
    """The next ``count`` records, one by one; fewer if they do not come within 15 s."""
    records = []
    for _ in range(count):
        record = consumer.poll(15)
        if record is None:
            break
        records.append(record)
    return records


def test_a_started_partition_is_read_and_its_consumed_records_are_committed(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    partition = TopicPartition(topic, 0)
    values = produce(topic, 0, 10)
    consumer = make_consumer(topics=[topic], auto_commit_interval_ms=50)

    coordinator.run_start(consumer.consumer_id, [partition])
    records = read(consumer, 10)

    assert [record.value for record in records] == values
    assert [record.offset for record in records] == list(range(10))
    assert consumer.poll(0.3) is None  # the tenth is done with now
    coordinator.run_stop(consumer.consumer_id, [partition])
    assert coordinator.offset(partition) == 10
