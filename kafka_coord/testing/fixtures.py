"""Pytest fixtures, and the real cluster that one of them starts, with the methods of
:class:`~kafka_coord.testing.fake_cluster.FakeCluster`. To use them, set ``pytest_plugins =
["kafka_coord.testing.fixtures"]`` in a ``conftest.py``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Self

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Until
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kafka_coord import AsyncConsumer, Consumer
from kafka_coord.channel.operations import decode_offset
from kafka_coord.errors import NoNode, SettingsError
from kafka_coord.testing.fake_cluster import FakeCluster
from kafka_coord.zk import connect, layout

_WAIT_S = 60.0


class RealCluster:
    """A test cluster whose servers are already running, at ``zookeeper`` and ``bootstrap_servers``."""

    def __init__(self, zookeeper: str, bootstrap_servers: str) -> None:
        self.zookeeper = zookeeper
        self.bootstrap_servers = bootstrap_servers
        self._store = connect(zookeeper)
        settings = {"bootstrap.servers": bootstrap_servers, "log_level": 0}
        self._admin = AdminClient(settings)
        self._producer = Producer({**settings, "linger.ms": 0})
        self._consumers: list[Consumer[Any, Any]] = []

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Creates a topic, or adds partitions to it."""
        if name in self._admin.list_topics(timeout=_WAIT_S).topics:
            self._admin.create_partitions([NewPartitions(name, partitions)])[name].result(_WAIT_S)
        else:
            self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result(_WAIT_S)

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int = 0,
        headers: tuple[tuple[str, bytes | None], ...] = (),
        timestamp_ms: int | None = None,
    ) -> int:
        """Writes a record and returns its offset. If the topic or the partition is new, retries until it is known."""
        written: list[Message] = []
        more = {} if timestamp_ms is None else {"timestamp": timestamp_ms}
        deadline = time.monotonic() + _WAIT_S
        while True:
            try:
                self._producer.produce(
                    topic,
                    value,
                    key,
                    partition=partition,
                    headers=list(headers),
                    on_delivery=lambda _error, message: written.append(message),
                    **more,
                )
            except KafkaException as refused:  # the client knows the topic, but not this partition
                error = refused.args[0]
                self._producer.list_topics(topic, timeout=_WAIT_S)
            else:
                self._producer.flush(_WAIT_S)
                message = written.pop()
                error = message.error()
            if error is None:
                return int(message.offset())
            if error.code() != KafkaError._UNKNOWN_PARTITION or time.monotonic() >= deadline:
                raise RuntimeError(f"could not write to {topic}-{partition}: {error.str()}")
            time.sleep(0.1)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Deletes the records before the offset ``before``, as retention does."""
        (done,) = self._admin.delete_records([Until(topic, partition, before)]).values()
        done.result(_WAIT_S)

    def consumer(self, **arguments: Any) -> Consumer[Any, Any]:
        """Returns a consumer with the given arguments."""
        consumer: Consumer[Any, Any] = Consumer(**{"zookeeper": self.zookeeper, **arguments})
        self._consumers.append(consumer)
        return consumer

    def async_consumer(self, **arguments: Any) -> AsyncConsumer[Any, Any]:
        """Returns a consumer for asyncio. Leaving the ``with`` block does not close it."""
        return AsyncConsumer(**{"zookeeper": self.zookeeper, **arguments})

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        """Returns the group's committed offsets, by partition."""
        path = layout.topic_offsets(group, topic)
        try:
            partitions = sorted(map(int, self._store.children(path)))
        except NoNode:
            return {}
        return {number: decode_offset(self._store.get(f"{path}/{number}").data, path) for number in partitions}

    def evict(self, consumer: Consumer[Any, Any] | AsyncConsumer[Any, Any]) -> None:
        """Ends the consumer's membership without notice, as a coordinator does when it evicts a slow consumer. The
        consumer registers again automatically."""
        self._store.delete(layout.registration(consumer.group, consumer.consumer_id))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for consumer in self._consumers:
            consumer.close()
        self._store.close()


@pytest.fixture
def fake_cluster() -> Iterator[FakeCluster]:
    """Yields a fake cluster for one test. Afterwards, closes the consumers that the test created with
    ``consumer()``."""
    with FakeCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def real_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """Starts a real ZooKeeper, one Kafka broker and a coordinator on loopback, for all tests of the session. Give each
    test its own topics and groups."""
    try:
        from kafka_coord.dev.cluster.cluster import DevCluster
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"{error}: the fixture real_cluster needs pip install . ./kafka_coord/dev (in a clone)"
        ) from error

    with (
        DevCluster(tmp_path_factory.mktemp("kafka-coord"), brokers=1, coordinators=True) as servers,
        RealCluster(servers.zookeeper, servers.bootstrap_servers) as cluster,
    ):
        yield cluster
