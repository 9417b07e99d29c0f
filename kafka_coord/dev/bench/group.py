"""Runs ZooKeeper for benchmarks without a broker, and creates topic znodes and registrations in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from kafka_coord.consumer.settings import MemberSettings, member_settings
from kafka_coord.dev.cluster.kafka_znodes import topic_value
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from kafka_coord.zk import layout
from kafka_coord.zk.session import connect
from kafka_coord.zk.store import Store


@contextmanager
def zookeeper(
    directory: Path, settings: ZooKeeperSettings, session_timeout_ms: int = 60_000
) -> Iterator[tuple[ZooKeeperServer, Store]]:
    """Runs a ZooKeeper server with the znodes that brokers and coordinators expect, and opens a session. Its timeout is
    long, so that the session does not expire while this process is busy."""
    with (
        ZooKeeperServer(directory / "zookeeper", settings=settings) as server,
        closing(connect(server.connect_string, session_timeout_ms=session_timeout_ms)) as store,
    ):
        for path in (layout.BROKER_TOPICS, layout.BROKER_IDS, *layout.PERSISTENT_ROOTS):
            store.ensure_path(path)
        yield server, store


def write_topic(store: Store, topic: str, partitions: int) -> None:
    """Creates the topic's znode, or changes the number of partitions in its data, as Kafka does."""
    path = layout.broker_topic(topic)
    value = topic_value(partitions)
    if store.exists(path):
        store.set(path, value)
    else:
        store.create(path, value)


def zxid_now(store: Store) -> int:
    """Writes a znode and returns the zxid of the write, so that transactions can be counted."""
    path = "/bench"
    store.ensure_path(path)
    return store.set(path, b"").mzxid


def plain_member(group: str, topic: str, consumer: str) -> MemberSettings:
    """Returns a member that subscribes to a topic, with defaults for all other fields."""
    return member_settings(group=group, topics=[topic], consumer_id=consumer)
