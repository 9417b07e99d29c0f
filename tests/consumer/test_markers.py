"""Positions and commits in a real log with transactions. The markers and aborted records in it are never handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Assigned
from confluent_kafka.admin import AdminClient

from kafka_coord import Consumer
from kafka_coord.dev.cluster.kafka import KafkaCluster
from kafka_coord.model import TopicPartition
from tests.consumer.by_hand import HandCoordinator
from tests.consumer.conftest import partitions_of
from tests.consumer.reading import read
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

_ABORTED = 5_000


@pytest.fixture
def transactions(kafka_cluster: KafkaCluster, make_topic: Callable[..., str]) -> Iterator[tuple[Producer, str]]:
    topic = make_topic(partitions=1)
    settings = {"bootstrap.servers": kafka_cluster.bootstrap_servers, "transactional.id": topic, "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(60)
    yield producer, topic
    producer.flush(5)


def write(producer: Producer, topic: str, count: int) -> None:
    producer.begin_transaction()
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    producer.flush(60)


def start(coordinator: HandCoordinator, consumer: Consumer, topic: str) -> TopicPartition:
    (partition,) = partitions_of(topic, 0)
    coordinator.run_start(consumer.consumer_id, {partition: 0})
    return partition


def poll_until(consumer: Consumer, condition: Callable[[], bool]) -> None:
    def polled() -> bool:
        assert consumer.poll(0.05) is None
        return condition()

    eventually(polled)


def test_an_aborted_transaction_leaves_no_lag(
    make_consumer: Callable[..., Consumer], coordinator: HandCoordinator, transactions: tuple[Producer, str]
):
    producer, topic = transactions
    write(producer, topic, 3)
    producer.commit_transaction(60)
    write(producer, topic, _ABORTED)
    producer.abort_transaction(60)
    consumer = make_consumer(topics=[topic], auto_commit_interval_ms=50)
    partition = start(coordinator, consumer, topic)
    assert [record.offset for record in read(consumer, 3)] == [0, 1, 2]
    eventually(lambda: coordinator.offset(partition) == 2)  # the third record is still in hand
    poll_until(consumer, lambda: coordinator.offset(partition) == _ABORTED + 5)
    assert consumer.position(partition) == _ABORTED + 5
    assert consumer.lag() == {partition: 0}


def test_an_open_transaction_is_not_passed(
    make_consumer: Callable[..., Consumer], coordinator: HandCoordinator, transactions: tuple[Producer, str]
):
    producer, topic = transactions
    write(producer, topic, 3)
    producer.commit_transaction(60)
    write(producer, topic, 10)
    consumer = make_consumer(topics=[topic], auto_commit_interval_ms=50)
    partition = start(coordinator, consumer, topic)
    read(consumer, 3)
    poll_until(consumer, lambda: coordinator.offset(partition) == 4)
    for _ in range(20):
        assert consumer.poll(0.05) is None
    assert consumer.position(partition) == 4
    producer.commit_transaction(60)
    assert [record.offset for record in read(consumer, 10)] == list(range(4, 14))
    poll_until(consumer, lambda: coordinator.offset(partition) == 15)


def test_the_application_commits_past_the_marker_or_exactly_what_it_names(
    make_consumer: Callable[..., Consumer], coordinator: HandCoordinator, transactions: tuple[Producer, str]
):
    producer, topic = transactions
    write(producer, topic, 3)
    producer.commit_transaction(60)
    consumer = make_consumer(topics=[topic], auto_commit_interval_ms=None)
    partition = start(coordinator, consumer, topic)
    records = read(consumer, 3)
    poll_until(consumer, lambda: consumer.position(partition) == 4)
    consumer.commit({partition: records[-1].offset + 1})
    assert coordinator.offset(partition) == 3
    consumer.commit()
    assert coordinator.offset(partition) == 4


def test_a_seek_back_over_a_marker_reads_the_records_again(
    make_consumer: Callable[..., Consumer], coordinator: HandCoordinator, transactions: tuple[Producer, str]
):
    producer, topic = transactions
    write(producer, topic, 3)
    producer.commit_transaction(60)
    write(producer, topic, 3)
    producer.commit_transaction(60)
    consumer = make_consumer(topics=[topic], auto_commit_interval_ms=50)
    partition = start(coordinator, consumer, topic)
    assert [record.offset for record in read(consumer, 6)] == [0, 1, 2, 4, 5, 6]
    poll_until(consumer, lambda: coordinator.offset(partition) == 8)
    consumer.seek(partition, 3)
    assert [record.offset for record in read(consumer, 3)] == [4, 5, 6]
    poll_until(consumer, lambda: coordinator.offset(partition) == 8)


def test_after_retention_has_removed_an_aborted_transaction_no_later_record_is_skipped(
    kafka_cluster: KafkaCluster,
    make_consumer: Callable[..., Consumer],
    coordinator: HandCoordinator,
    transactions: tuple[Producer, str],
):
    producer, topic = transactions
    write(producer, topic, 3)
    producer.commit_transaction(60)
    write(producer, topic, _ABORTED)
    producer.abort_transaction(60)
    consumer = make_consumer(topics=[topic], auto_offset_reset="latest")
    partition = start(coordinator, consumer, topic)
    read(consumer, 3)
    end = _ABORTED + 5
    poll_until(consumer, lambda: consumer.position(partition) == end)
    consumer.close()
    assert coordinator.offset(partition) == end

    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    for deleted in admin.delete_records([Assigned(topic, 0, end)]).values():
        assert deleted.result(30).low_watermark == end
    write(producer, topic, 5)
    producer.commit_transaction(60)
    again = make_consumer(topics=[topic], auto_offset_reset="latest")
    coordinator.run_start(again.consumer_id, {partition: end})
    assert [record.offset for record in read(again, 5)] == list(range(end, end + 5))
