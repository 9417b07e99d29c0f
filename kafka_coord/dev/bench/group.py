"""Creates topic znodes and registrations for benchmarks without a broker."""

from __future__ import annotations

from kafka_coord.consumer.settings import Membership, membership
from kafka_coord.dev.cluster.kafka_znodes import topic_value
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store


def write_topic(store: Store, topic: str, partitions: int) -> None:
    """Creates the topic's znode, or changes the number of partitions in its data, as Kafka does."""
    path = layout.broker_topic(topic)
    value = topic_value(partitions)
    if store.exists(path):
        store.set(path, value)
    else:
        store.create(path, value)


def zxid_now(store: Store) -> int:
    """Writes a znode and returns the zxid of the write, to count transactions."""
    path = "/bench"
    store.ensure_path(path)
    return store.set(path, b"").mzxid


def plain_member(group: str, topic: str, consumer: str) -> Membership:
    """Returns a member that subscribes to a topic, with defaults for all other fields."""
    return membership(group=group, topics=[topic], consumer_id=consumer)
