"""Topic znodes and registrations for benches that run without a broker."""

from __future__ import annotations

from kafka_coord.consumer.settings import Membership, membership
from kafka_coord.dev.cluster.kafka_znodes import topic_value
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store


def write_topic(store: Store, topic: str, partitions: int) -> None:
    """Creates the topic or changes its number of partitions as Kafka does, in the data of its znode."""
    path = layout.broker_topic(topic)
    value = topic_value(partitions)
    if store.exists(path):
        store.set(path, value)
    else:
        store.create(path, value)


def zxid_now(store: Store) -> int:
    """The zxid of a write made now, to count transactions."""
    path = "/bench"
    store.ensure_path(path)
    return store.set(path, b"").mzxid


def plain_member(group: str, topic: str, consumer: str) -> Membership:
    """A member that subscribes to a topic, with defaults for everything else."""
    return membership(group=group, topics=[topic], consumer_id=consumer)
