"""Tests of the offsets at which a consumer begins, and of those that it commits or refuses to commit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Producer

from kafka_coord import Consumer, ConsumerError, MembershipLost, NoOffset, NotFound, SettingsError, TopicPartition
from kafka_coord.dev.cluster.kafka import KafkaCluster
from kafka_coord.model import NO_OFFSET
from kafka_coord.zk import connect, layout
from kafka_coord.zk.store import Delete
from tests.consumer.by_hand import HandCoordinator
from tests.consumer.conftest import partitions_of
from tests.consumer.lossy_store import LossyStore
from tests.consumer.reading import Reader, read
from tests.monitor.deleting import delete_records
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

Produce = Callable[..., list[bytes]]
MakeConsumer = Callable[..., Consumer]
MakeTopic = Callable[..., str]


def test_latest_begins_at_the_end_and_that_offset_is_stored_first(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    produce(topic, 0, 7)
    consumer = make_consumer(topics=[topic], auto_offset_reset="latest", auto_commit_interval_ms=None)

    coordinator.run_start(consumer.consumer_id, {partition: NO_OFFSET})

    # stored before anything is read, so that "latest" still means this moment after a crash
    eventually(lambda: coordinator.offset(partition) == 7)
    values = produce(topic, 0, 2)
    assert [record.value for record in read(consumer, 2)] == values


def test_a_partition_that_cannot_be_resolved_delays_neither_the_acknowledgement_nor_another(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    missing = TopicPartition("nobody-has-this-topic", 0)
    produce(topic, 0, 7)
    told: list[dict[TopicPartition, str]] = []
    consumer = make_consumer(
        topics=[topic], auto_offset_reset="latest", on_unresolved=lambda found: told.append(dict(found))
    )

    coordinator.run_start(consumer.consumer_id, {partition: NO_OFFSET, missing: NO_OFFSET})  # waits for the deletion

    eventually(lambda: coordinator.offset(partition) == 7)
    values = produce(topic, 0, 2)
    assert [record.value for record in read(consumer, 2)] == values
    eventually(lambda: missing in consumer.stats.unresolved)
    assert any(missing in one for one in told)
    coordinator.run_stop(consumer.consumer_id, [missing])
    assert coordinator.offset(missing) == NO_OFFSET, "a stop of an unresolved partition commits nothing"


def test_with_error_reads_fail_until_the_application_seeks(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    produce(topic, 0, 5)
    consumer = make_consumer(topics=[topic], auto_offset_reset="error")
    coordinator.run_start(consumer.consumer_id, {partition: NO_OFFSET})

    for _ in range(2):
        with pytest.raises(NoOffset, match=f"no offset is stored for {partition}.*seek"):
            consumer.poll(5)
    consumer.seek(partition, 3)

    assert [record.offset for record in read(consumer, 2)] == [3, 4]


def test_an_offset_beyond_the_log_is_reset_to_the_beginning_of_the_log(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    """The committed offset is beyond the end of the log, as after the topic was created again."""
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    produce(topic, 0, 5)
    consumer = make_consumer(topics=[topic], auto_offset_reset="earliest")
    coordinator.run_start(consumer.consumer_id, {partition: 9_999})

    assert [record.offset for record in read(consumer, 5)] == [0, 1, 2, 3, 4]
    consumer.commit()
    assert coordinator.offset(partition) == 5


def test_an_offset_beyond_the_log_is_reset_to_the_end_of_the_log(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    produce(topic, 0, 5)
    consumer = make_consumer(topics=[topic], auto_offset_reset="latest")
    with Reader(consumer) as reader:
        coordinator.run_start(consumer.consumer_id, {partition: 9_999})
        eventually(lambda: consumer.position(partition) == 5)
        produce(topic, 0, 1)
        eventually(lambda: [record.offset for record in reader.records] == [5])


def test_an_offset_that_is_not_in_the_log_causes_an_error_if_so_configured(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    produce(topic, 0, 5)
    consumer = make_consumer(topics=[topic], auto_offset_reset="error")
    coordinator.run_start(consumer.consumer_id, {partition: 9_999})

    with pytest.raises(NoOffset, match=f"offset 9999 of {partition} is not in the log"):
        read(consumer, 1)
    consumer.seek(partition, "earliest")

    assert [record.offset for record in read(consumer, 5)] == [0, 1, 2, 3, 4]
    consumer.commit()  # an offset goes back only because of a seek
    assert coordinator.offset(partition) == 5


def test_commit_stores_the_offsets_of_all_records_handed_out(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    produce(topic, 0, 10)
    consumer = make_consumer(topics=[topic], auto_commit_interval_ms=None)
    coordinator.run_start(consumer.consumer_id, [partition])

    assert len(read(consumer, 4)) == 4
    assert coordinator.offset(partition) == NO_OFFSET
    consumer.commit()
    assert coordinator.offset(partition) == 4
    consumer.commit({partition: 4})

    batch = consumer.consume(3, 5)
    future = consumer.commit(asynchronous=True)
    future.result(60)
    assert coordinator.offset(partition) == 4 + len(batch)
    assert consumer.committed() == {partition: 4 + len(batch)}
    assert consumer.position(partition) == 4 + len(batch)


def test_without_auto_commit_a_stop_stores_only_the_commits_made_in_on_stop(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic(2)
    forgotten, kept = partitions_of(topic, 0, 1)
    produce(topic, 0, 3)
    produce(topic, 1, 3)

    def on_stop(partitions: frozenset[TopicPartition]) -> None:
        if kept in partitions:
            consumer.commit({kept: 2})

    consumer = make_consumer(topics=[topic], auto_commit_interval_ms=None, on_stop=on_stop)
    coordinator.run_start(consumer.consumer_id, [forgotten, kept])
    assert len(read(consumer, 6)) == 6
    assert consumer.poll(0.05) is None

    coordinator.run_stop(consumer.consumer_id, [forgotten])
    coordinator.run_stop(consumer.consumer_id, [kept])

    assert coordinator.offset(forgotten) == NO_OFFSET
    assert coordinator.offset(kept) == 2


def test_a_commit_goes_back_only_after_a_seek(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    produce(topic, 0, 10)
    consumer = make_consumer(topics=[topic], auto_commit_interval_ms=None)
    coordinator.run_start(consumer.consumer_id, [partition])
    assert len(read(consumer, 6)) == 6
    consumer.commit()

    with pytest.raises(ConsumerError, match="seek"):
        consumer.commit({partition: 2})
    with pytest.raises(ConsumerError, match="handed out up to 6"):
        consumer.commit({partition: 7})
    consumer.seek(partition, 1)
    assert [record.offset for record in read(consumer, 2)] == [1, 2]
    consumer.commit()

    assert coordinator.offset(partition) == 3


def test_a_paused_partition_is_not_read_and_continues_without_a_gap_after_resume(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic(2)
    paused, flowing = partitions_of(topic, 0, 1)
    values = produce(topic, 0, 50)
    consumer = make_consumer(topics=[topic])
    coordinator.run_start(consumer.consumer_id, [paused, flowing])
    before = read(consumer, 5)

    consumer.pause([paused])
    others = produce(topic, 1, 3)
    assert [record.value for record in read(consumer, 3)] == others
    assert consumer.position(paused) == 5
    consumer.resume([paused])
    after = read(consumer, 45)

    assert [record.value for record in before + after] == values


def test_after_a_seek_the_next_record_is_the_one_at_the_target(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    produce(topic, 0, 100)
    consumer = make_consumer(topics=[topic])
    coordinator.run_start(consumer.consumer_id, [partition])

    for target in (50, 10, 99, 0):
        consumer.seek(partition, target)
        assert [record.offset for record in read(consumer, 1)] == [target]
    consumer.seek(partition, "latest")
    assert consumer.position(partition) == 100
    (value,) = produce(topic, 0, 1)
    assert [record.value for record in read(consumer, 1)] == [value]


def test_a_consumer_returns_the_logs_ends_offsets_for_times_and_the_lag(
    kafka_cluster: KafkaCluster, make_consumer: MakeConsumer, make_topic: MakeTopic, coordinator: HandCoordinator
) -> None:
    topic = make_topic(partitions=2)
    filled, empty = partitions_of(topic, 0, 1)
    began = datetime(2026, 1, 1, tzinfo=UTC)
    producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers, "log_level": 0})
    for minute in range(5):
        time_ms = int((began + timedelta(minutes=minute)).timestamp() * 1000)
        producer.produce(topic, b"v", partition=0, timestamp=time_ms)
    assert producer.flush(90) == 0
    consumer = make_consumer(topics=[topic])
    coordinator.run_start(consumer.consumer_id, {filled: NO_OFFSET, empty: NO_OFFSET})
    assert consumer.lag() == {filled: 5, empty: 0}
    assert len(read(consumer, 2)) == 2

    assert consumer.lag() == {filled: 3, empty: 0}
    assert consumer.beginning_offsets() == {filled: 0, empty: 0}
    assert consumer.end_offsets([(topic, 0)]) == {filled: 5}
    late, early = began + timedelta(hours=1), began + timedelta(minutes=3)
    assert consumer.offsets_for_times({filled: early, empty: 0}) == {filled: 3, empty: None}
    consumer.seek(filled, early)
    assert [record.offset for record in read(consumer, 1)] == [3]
    consumer.seek(filled, late)
    assert consumer.position(filled) == 5
    consumer.seek(filled, 1)
    delete_records(kafka_cluster, {filled: 4})
    assert consumer.lag() == {filled: 1, empty: 0}, "records that were deleted do not wait"
    with pytest.raises(NotFound, match=f"{topic}-9"):
        consumer.end_offsets([(topic, 9)])
    with pytest.raises(SettingsError, match="no time zone"):
        consumer.seek(filled, datetime(2026, 1, 1))  # noqa: DTZ001


def test_commit_of_a_partition_that_is_not_held_is_refused(
    make_consumer: MakeConsumer, make_topic: MakeTopic, coordinator: HandCoordinator
) -> None:
    consumer = make_consumer(topics=[make_topic()])
    coordinator.await_member(consumer.consumer_id)
    with pytest.raises(MembershipLost, match="t-0 is not assigned"):
        consumer.commit({("t", 0): 1})


def test_offsets_of_a_deleted_topic_cannot_be_committed_and_do_not_affect_other_topics(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    deleted, alive = make_topic(), make_topic()
    produce(deleted, 0, 2)
    produce(alive, 0, 2)
    consumer = make_consumer(topics=[deleted, alive], auto_commit_interval_ms=None)
    coordinator.run_start(consumer.consumer_id, partitions_of(deleted, 0) + partitions_of(alive, 0))
    assert len(read(consumer, 4)) == 4

    coordinator.store.delete(layout.topic_offsets(coordinator.group, deleted))  # as the coordinator would

    with pytest.raises(NotFound, match=deleted):
        consumer.commit()
    assert coordinator.offset(TopicPartition(alive, 0)) == 2
    coordinator.run_stop(consumer.consumer_id, partitions_of(deleted, 0))


def test_a_command_whose_acknowledgements_reply_is_lost_is_not_carried_out_again(
    kafka_cluster: KafkaCluster,
    make_consumer: MakeConsumer,
    make_topic: MakeTopic,
    produce: Produce,
    coordinator: HandCoordinator,
) -> None:
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    produce(topic, 0, 3)
    lossy = LossyStore(connect(kafka_cluster.zookeeper, session_timeout_ms=10_000))
    told: list[frozenset[TopicPartition]] = []
    consumer = make_consumer(topics=[topic], store=lossy, on_stop=told.append)
    coordinator.run_start(consumer.consumer_id, [partition])
    assert len(read(consumer, 3)) == 3
    assert consumer.poll(0.05) is None

    lossy.lose_reply_of(lambda ops: isinstance(ops[-1], Delete))
    coordinator.run_stop(consumer.consumer_id, [partition])

    eventually(lambda: consumer.stats.stops == 1)
    assert lossy.lost == 1
    assert told == [{partition}]
    assert coordinator.offset(partition) == 3
    assert consumer.stats.losses == 0
    consumer.close()
    lossy.close()
