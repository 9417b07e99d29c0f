"""What remains between a commit and the end of a real log, with transactions, retention and compaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Assigned
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_coord.dev.cluster.kafka import KafkaCluster
from kafka_coord.groups.next_records import Next, probe_with
from kafka_coord.model import TopicPartition
from tests.waiting import eventually

pytestmark = pytest.mark.kafka


Reading = Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, Next | None]]


@pytest.fixture
def probe(kafka_cluster: KafkaCluster) -> Reading:
    """Reads, and checks that each record has the time at which it was written, and that nothing else has one."""
    read = probe_with(lambda: kafka_cluster.bootstrap_servers, {})

    def reading(wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Next | None]:
        found = read(wanted, 10.0)
        for one in found.values():
            assert one is not None
            assert (one.timestamp_ms is not None) is one.is_record
            assert one.timestamp_ms is None or abs(time.time() - one.timestamp_ms / 1000) < 300
        return {tp: one and one._replace(timestamp_ms=None) for tp, one in found.items()}

    return reading


@pytest.fixture
def make_log(kafka_cluster: KafkaCluster) -> Iterator[Callable[..., tuple[Producer, TopicPartition]]]:
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    made: list[str] = []

    def make(name: str, **config: str) -> tuple[Producer, TopicPartition]:
        topic = f"{name}-{time.time_ns()}"
        settings = {one.replace("_", "."): value for one, value in config.items()}
        admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result(30)
        made.append(topic)
        producer = Producer(
            {"bootstrap.servers": kafka_cluster.bootstrap_servers, "transactional.id": topic, "log_level": 0}
        )
        producer.init_transactions(60)
        return producer, TopicPartition(topic, 0)

    yield make
    for future in admin.delete_topics(made).values():
        future.result(30)


def write(producer: Producer, tp: TopicPartition, count: int, *, abort: bool = False) -> None:
    producer.begin_transaction()
    for number in range(count):
        producer.produce(tp.topic, b"value", key=b"key-%d" % number, partition=0)
    producer.flush(60)
    (producer.abort_transaction if abort else producer.commit_transaction)(60)


def test_after_an_abort_5002_offsets_remain_and_no_record(probe: Reading, make_log: Callable[..., object]):
    producer, tp = make_log("aborted")  # type: ignore[misc]
    write(producer, tp, 3)
    write(producer, tp, 5_000, abort=True)
    assert probe({tp: 3}) == {tp: Next(5_005, is_record=False)}
    assert probe({tp: 2}) == {tp: Next(2, is_record=True)}
    write(producer, tp, 1)
    assert probe({tp: 3}) == {tp: Next(5_005, is_record=True)}


def test_an_open_transaction_ends_what_can_be_read(probe: Reading, make_log: Callable[..., object]):
    producer, tp = make_log("open")  # type: ignore[misc]
    write(producer, tp, 3)
    producer.begin_transaction()
    producer.produce(tp.topic, b"value", partition=0)
    producer.flush(60)
    assert probe({tp: 3}) == {tp: Next(4, is_record=False)}
    producer.abort_transaction(60)


def _closes_a_segment(producer: Producer, tp: TopicPartition) -> None:
    """Writes records that close the segment of those before them, and aborts their transaction."""
    time.sleep(0.2)
    write(producer, tp, 100, abort=True)


def test_a_compacted_tail_holds_no_record(probe: Reading, make_log: Callable[..., object], kafka_cluster: KafkaCluster):
    config = {"cleanup_policy": "compact", "segment_ms": "100", "min_cleanable_dirty_ratio": "0.001"}
    producer, tp = make_log("compacted", delete_retention_ms="0", **config)  # type: ignore[misc]
    write(producer, tp, 3)
    for _ in range(4):
        _closes_a_segment(producer, tp)
    reader = Consumer(
        {
            "bootstrap.servers": kafka_cluster.bootstrap_servers,
            "group.id": "raw",
            "isolation.level": "read_uncommitted",
            "log_level": 0,
        }
    )

    def is_compacted() -> bool:
        _closes_a_segment(producer, tp)  # Kafka's cleaner looks at a log again only if more can be cleaned
        reader.assign([Assigned(tp.topic, 0, 3)])
        message = reader.poll(10)
        return message is not None and message.error() is None and message.offset() > 3 + 2 * 101

    eventually(is_compacted, 120, 1.0)

    def is_at_end() -> bool:  # the last transaction's marker may be written after its producer is told
        _, end = reader.get_watermark_offsets(Assigned(tp.topic, 0), timeout=30)
        return probe({tp: 3}) == {tp: Next(end, is_record=False)}

    eventually(is_at_end)
    reader.close()
