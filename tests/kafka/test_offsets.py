"""Tests of end offsets from real brokers, and of the notes if they cannot be read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from kafka_coord.dev.cluster.kafka import KafkaCluster
from kafka_coord.errors import BrokerError, RequestRefused
from kafka_coord.kafka.brokers import bootstrap_servers
from kafka_coord.kafka.client import OwnClient
from kafka_coord.kafka.librdkafka import LibrdkafkaClient
from kafka_coord.kafka.offsets import NO_SUCH_RECORD, OffsetReader
from kafka_coord.model import PartitionSet, TopicPartition
from kafka_coord.model.offsets import LogRange
from kafka_coord.zk import layout
from tests.monitor.deleting import delete_records
from tests.monitor.written import opened
from tests.waiting import eventually

pytestmark = pytest.mark.kafka


def write(cluster: KafkaCluster, topic: str, counts: dict[int, int], timestamp_ms: int = 0) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 1, "log_level": 0})
    for partition, count in counts.items():
        for _ in range(count):
            producer.produce(topic, b"x", partition=partition, timestamp=timestamp_ms)
    assert producer.flush(90) == 0


@pytest.fixture(params=[{}, {"api.version.request": "true"}], ids=["own", "librdkafka"])
def reader(kafka_cluster: KafkaCluster, request: pytest.FixtureRequest) -> Iterator[OffsetReader]:
    """Reads over this project's own connections, and through librdkafka."""
    with opened(kafka_cluster.zookeeper) as store:
        made = OffsetReader(bootstrap_servers(store, {}), request.param)
    assert isinstance(made._client, LibrdkafkaClient if request.param else OwnClient)
    yield made
    made.close()


def test_offsets_of_the_beginning_the_end_and_a_time(
    kafka_cluster: KafkaCluster, make_topic: Callable[..., str], reader: OffsetReader
) -> None:
    topic = make_topic(3)
    write(kafka_cluster, topic, {0: 5, 1: 2}, timestamp_ms=1_000_000)
    write(kafka_cluster, topic, {0: 3}, timestamp_ms=2_000_000)
    p0, p1, p2 = (TopicPartition(topic, n) for n in range(3))
    wanted = PartitionSet.of([p0, p1, p2])

    assert reader.latest(wanted).offsets == {p0: 8, p1: 2, p2: 0}
    assert reader.earliest(wanted).offsets == {p0: 0, p1: 0, p2: 0}
    found = reader.at_time(wanted, 1_500_000)
    assert found.offsets == {p0: 5, p1: NO_SUCH_RECORD, p2: NO_SUCH_RECORD}
    assert found.note == ""

    delete_records(kafka_cluster, {p0: 6, p1: 2})
    assert reader.ranges(wanted).ranges == {p0: LogRange(6, 8), p1: LogRange(2, 2), p2: LogRange(0, 0)}


def test_both_create_a_topic_once(kafka_cluster: KafkaCluster, reader: OffsetReader) -> None:
    client = reader._client
    topic = f"made-by-{type(client).__name__}"
    assert client.led_partitions(topic, 10.0) == 0
    assert client.create_topic(topic, 3, -1, 30.0)
    assert not client.create_topic(topic, 3, -1, 30.0)
    assert eventually(lambda: client.led_partitions(topic, 10.0), within_s=30) == 3
    assert client.refused([topic, "no-such-topic"], 5.0) == {}
    with pytest.raises(RequestRefused, match="cannot create topic"):
        client.create_topic(f"{topic}-wide", 1, 100, 30.0)


def test_a_note_says_that_a_partition_is_unknown_and_the_others_are_returned(
    make_topic: Callable[..., str], reader: OffsetReader
) -> None:
    known, unknown = TopicPartition(make_topic(1), 0), TopicPartition("no-such-topic", 7)
    found = reader.latest(PartitionSet.of([known, unknown]))
    assert found.offsets == {known: 0}
    assert found.note == "the offsets of 1 of 2 partitions are unknown: the brokers do not know the partition"


def test_only_partitions_of_a_dead_broker_have_an_unknown_lag(
    kafka_cluster: KafkaCluster, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(3, replication=1)
    partitions = PartitionSet({topic: range(3)})
    victim, leaderless = kafka_cluster.brokers[2], "the partition has no live leader"
    with opened(kafka_cluster.zookeeper) as store:
        victim.stop()
        try:
            eventually(lambda: store.exists(layout.broker(victim.broker_id)) is None, within_s=40)
            reader = OffsetReader(bootstrap_servers(store, {}), {})
            found = eventually(
                lambda: (seen := reader.latest(partitions)).note.endswith(leaderless) and seen, within_s=40
            )
            reader.close()
        finally:
            victim.start()
    assert len(found.offsets) == 2
    assert found.note == f"the offsets of 1 of 3 partitions are unknown: {leaderless}"


def test_the_wait_for_unreachable_brokers_is_bounded() -> None:
    reader = OffsetReader("127.0.0.1:1", {}, timeout_s=1.0)
    began = time.monotonic()
    found = reader.latest(PartitionSet({"flights": [0]}))
    assert time.monotonic() - began < 20
    assert found.offsets == {}
    assert "no broker answers: 127.0.0.1:1: " in found.note
    reader.close()


def test_settings_that_librdkafka_refuses_cause_an_error() -> None:
    with pytest.raises(BrokerError, match="librdkafka rejected the broker settings"):
        OffsetReader("127.0.0.1:1", {"no.such.property": "1"})
