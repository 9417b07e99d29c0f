"""Deletes the oldest records of a log, as retention does, but at once."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import TopicPartition as Before
from confluent_kafka.admin import AdminClient

from kafka_coord.dev.cluster.kafka import KafkaCluster
from kafka_coord.model import TopicPartition


def delete_records(cluster: KafkaCluster, before: Mapping[TopicPartition, int]) -> None:
    """Moves the start of each log to the given offset, with Kafka's DeleteRecords."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for future in admin.delete_records([Before(*tp, offset) for tp, offset in before.items()]).values():
        future.result(30)
