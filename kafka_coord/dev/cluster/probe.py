"""Checks that a cluster is ready: writes records to it and reads them back."""

from __future__ import annotations

import contextlib
import time
import uuid

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.errors import DevClusterError, RequestRefused

TOPIC = "kafka-coord-dev-probe"


def write_and_read_back(bootstrap_servers: str, brokers: int, timeout_s: float = 60.0) -> None:
    """Writes a record through each of ``brokers`` brokers to a temporary topic, and reads it back.

    Raises :class:`DevClusterError` if a record is refused, or cannot be read back within ``timeout_s`` seconds.
    """
    topics = TopicAdmin(bootstrap_servers, timeout_s=timeout_s)
    with contextlib.suppress(RequestRefused):  # the topic exists only if an earlier probe was killed
        topics.delete(TOPIC)
    topics.create(TOPIC, partitions=brokers)  # Kafka gives each broker one
    try:
        token = uuid.uuid4().bytes
        _write(bootstrap_servers, token, brokers, timeout_s)
        _read(bootstrap_servers, token, brokers, timeout_s)
    finally:
        topics.delete(TOPIC)


def _write(bootstrap_servers: str, token: bytes, partitions: int, timeout_s: float) -> None:
    failures: list[str] = []

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failures.append(error.str())

    producer = Producer(
        {"bootstrap.servers": bootstrap_servers, "message.timeout.ms": int(timeout_s * 1000), "log_level": 0}
    )
    for partition in range(partitions):
        producer.produce(TOPIC, token, partition=partition, on_delivery=delivered)
    left = producer.flush(timeout_s)
    if left or failures:
        raise DevClusterError(
            f"the brokers did not accept all test records: {failures[0] if failures else 'no answer'}"
        )


def _read(bootstrap_servers: str, token: bytes, partitions: int, timeout_s: float) -> None:
    # Even without a subscription, librdkafka looks for its group's coordinator, and Kafka then creates
    # __consumer_offsets. An empty group name would avoid that, but makes librdkafka crash in close().
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": TOPIC, "enable.auto.commit": False, "log_level": 0}
    )
    try:
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(partitions)])
        awaited = set(range(partitions))
        deadline = time.monotonic() + timeout_s
        while awaited:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None and message.value() == token:
                awaited.discard(message.partition())
            elif time.monotonic() >= deadline:
                raise DevClusterError(f"test records were written, but could not be read within {timeout_s:.0f} s")
    except KafkaException as error:
        raise DevClusterError(f"test records cannot be read: {error}") from error
    finally:
        consumer.close()
