"""Tests of fetching exact ranges from a real log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from kafka_coord.errors import MalformedValue
from kafka_coord.kafka.offsets import OffsetReader
from kafka_coord.model import PartitionSet, TopicPartition
from kafka_coord.spark import fetching
from kafka_coord.testing.fake_cluster import FakeClient, FakeLogs, FakeMessage
from tests.waiting import eventually

Record = tuple[int, int]
"""Partition and offset."""


@pytest.fixture
def fetched(kafka_cluster) -> Iterator[Callable[..., list[Record]]]:
    """Fetches ranges. Returns the records in the order in which they were read."""

    def fetch(*ranges: fetching.Range) -> list[Record]:
        settings = {"bootstrap.servers": kafka_cluster.bootstrap_servers}
        batches = fetching.fetch(ranges, settings, headers=False, fail=True)
        return [(row["partition"], row["offset"]) for batch in batches for row in batch.to_pylist()]

    yield fetch
    fetching._close_all()


NANOSECONDS = 1_764_380_000_000_000_000


class Message:
    """A record with a timestamp."""

    def __init__(self, offset: int, ms: int) -> None:
        self._offset, self._ms = offset, ms

    def topic(self) -> str:
        return "flights"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self._ms

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return None


@pytest.mark.parametrize("ms", [NANOSECONDS, -NANOSECONDS, 2**63 - 1, -(2**63), 2**63 // 1000 + 1])
def test_a_timestamp_that_spark_cannot_hold_is_named_with_its_record_or_clamped(ms: int) -> None:
    messages = [Message(16, 1_000), Message(17, ms), Message(18, -1)]
    with pytest.raises(MalformedValue, match=rf"flights-3 at 17: .*{ms} ms.*timestampOutOfRange=clamp"):
        fetching.to_arrow(messages, headers=False)
    rows = fetching.to_arrow(messages, headers=False, clamp=True).to_pylist()
    assert [row["timestamp"].year for row in rows] == [1970, 9999 if ms > 0 else 1, 1969]


def test_the_last_timestamp_that_spark_can_hold_is_read() -> None:
    import pyarrow as pa

    most = (2**63 - 1) // 1000
    column = fetching.to_arrow([Message(0, most)], headers=False).column("timestamp")
    assert column.cast(pa.int64()).to_pylist() == [most * 1000]


def test_a_record_with_nanoseconds_is_named_by_a_task(fetched, kafka_cluster, topics):
    topic = "with-nanoseconds"
    topics.create(topic, config={"message.timestamp.after.max.ms": str(2**63 - 1)})  # Kafka 4 refuses it otherwise
    producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers, "log_level": 0})
    producer.produce(topic, b"x", partition=0)
    producer.produce(topic, b"x", partition=0, timestamp=NANOSECONDS)
    assert producer.flush(60) == 0
    with pytest.raises(MalformedValue, match=f"{topic}-0 at 1"):
        fetched((topic, 0, 0, 2))


def test_ranges_of_many_partitions_are_read_together_in_order_and_exactly(fetched, numbered, make_topic):
    topic = make_topic(partitions=6)
    numbered(topic, 6).burst(6 * 50)

    read = fetched(*((topic, partition, 10, 20 + partition) for partition in range(6)))

    for partition in range(6):
        assert [offset for at, offset in read if at == partition] == list(range(10, 20 + partition))


def test_two_ranges_of_one_partition_omit_the_records_in_between(fetched, numbered, make_topic):
    topic = make_topic(partitions=2)
    numbered(topic, 2).burst(200)

    read = fetched((topic, 0, 0, 5), (topic, 0, 60, 70), (topic, 1, 90, 100), (topic, 0, 95, 100))

    assert [offset for at, offset in read if at == 0] == [*range(5), *range(60, 70), *range(95, 100)]
    assert [offset for at, offset in read if at == 1] == list(range(90, 100))


def test_a_range_that_ends_with_a_transaction_marker_is_read_to_its_end(fetched, kafka_cluster, numbered, make_topic):
    topic = make_topic(partitions=2)
    writes_transaction(kafka_cluster.bootstrap_servers, topic, {0: 3})  # offsets 0 to 2, and the commit marker at 3
    numbered(topic, 2).burst(20)

    read = fetched((topic, 0, 0, 4), (topic, 1, 0, 10))
    assert sorted(read) == [*((0, offset) for offset in range(3)), *((1, offset) for offset in range(10))]
    assert fetched((topic, 0, 2, 6)) == [(0, 2), (0, 4), (0, 5)]


def test_a_range_up_to_the_end_of_the_log_ends_at_a_final_transaction_marker(fetched, kafka_cluster, make_topic):
    topic = make_topic(partitions=2)
    writes_transaction(kafka_cluster.bootstrap_servers, topic, {0: 1, 1: 2})

    assert sorted(fetched((topic, 0, 0, 2), (topic, 1, 0, 3))) == [(0, 0), (1, 0), (1, 1)]


def writes_transaction(bootstrap: str, topic: str, counts: dict[int, int]) -> None:
    """Writes ``counts`` records into each of these empty partitions in a transaction. Returns when the commit markers
    can be read, which is some time after the commit."""
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(60)
    producer.begin_transaction()
    for partition, count in counts.items():
        for _ in range(count):
            producer.produce(topic, b"x", partition=partition)
    producer.commit_transaction(60)
    reader = OffsetReader(bootstrap, {}, read_committed=True)
    wanted = {TopicPartition(topic, partition): count + 1 for partition, count in counts.items()}
    eventually(lambda: reader.latest(PartitionSet.of(wanted)).offsets == wanted, within_s=60)
    reader.close()


class RefusedTheGroup(FakeClient):
    """librdkafka has already been refused the coordinator of the group that it looks up, before any record arrives."""

    def __init__(self, logs: FakeLogs) -> None:
        super().__init__(logs)
        denied = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "FindCoordinator response error")
        self._reported = [FakeMessage("", 0, 0, error=denied)]

    def assign(self, partitions: list[Any]) -> None:
        self.incremental_assign(partitions)

    def consume(self, limit: int, timeout: float) -> list[FakeMessage]:
        reported, self._reported = self._reported, []
        return reported or super().consume(limit, timeout)


def test_a_task_that_is_refused_the_group_before_the_first_record_reads_all_the_same() -> None:
    logs = FakeLogs()
    logs.topics["flights"] = [[]]
    for _ in range(2):
        logs.append("flights", 0, {"timestamp_ms": 1_000})
    client: Any = RefusedTheGroup(logs)
    batches = list(fetching._fetch_together(client, [("flights", 0, 0, 2)], headers=False, fail=True))
    assert sum(batch.num_rows for batch in batches) == 2
