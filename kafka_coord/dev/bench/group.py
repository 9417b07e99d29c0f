"""What benches without a broker write into their ZooKeeper: a topic as Kafka has it, and how their members register."""

from __future__ import annotations

from kafka_coord.consumer.settings import Membership, membership
from kafka_coord.dev.cluster.kafka_znodes import topic_value
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store


def write_topic(store: Store, topic: str, partitions: int) -> None:
    """Makes the topic or changes how many partitions it has, as Kafka does: in the data of its znode."""
    path = layout.broker_topic(topic)
    value = topic_value(partitions)
    if store.exists(path):
        store.set(path, value)
    else:
        store.create(path, value)


def zxid_now(store: Store) -> int:
    """Of a write made now: how many transactions there have been."""
    path = "/bench"
    store.ensure_path(path)
    return store.set(path, b"").mzxid


def plain_member(group: str, topic: str, consumer: str) -> Membership:
    """One that subscribes to a topic, and has the default of everything else."""
    return membership(group=group, topics=[topic], consumer_id=consumer)
