"""Tests of iteration over a run of records of one partition. Any change of the partition ends the run at once."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from kafka_coord import Consumer, ConsumerError
from tests.consumer.by_hand import HandCoordinator
from tests.consumer.conftest import partitions_of
from tests.consumer.reading import read
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

_COUNT = 200


@pytest.fixture
def begun(
    make_consumer: Callable[..., Consumer],
    make_topic: Callable[..., str],
    coordinator: HandCoordinator,
    produce: Callable[..., list[bytes]],
) -> tuple[Consumer, str]:
    """A consumer that has iterated over 10 records of partition 0, and has fetched more of them."""
    topic = make_topic(partitions=2)
    produce(topic, 0, _COUNT)
    produce(topic, 1, _COUNT)
    consumer = make_consumer(topics=[topic], auto_commit_interval_ms=50)
    coordinator.run_start(consumer.consumer_id, dict.fromkeys(partitions_of(topic, 0), 0))
    assert [record.offset for record in read(consumer, 10)] == list(range(10))
    return consumer, topic


def test_a_stop_ends_the_run_and_commits_the_records_handed_out(
    begun: tuple[Consumer, str], coordinator: HandCoordinator
):
    consumer, topic = begun
    moving, staying = partitions_of(topic, 0, 1)
    coordinator.run_start(consumer.consumer_id, {staying: 0})
    command = coordinator.stop(consumer.consumer_id, [moving])
    eventually(lambda: moving not in consumer.assignment())
    assert not coordinator.acknowledged(command)  # the tenth record is still in hand
    record = consumer.poll(10)
    assert record is not None
    assert (record.partition, record.offset) == (1, 0)
    coordinator.await_acknowledged(command)
    assert coordinator.offset(moving) == 10


def test_a_start_of_another_partition_does_not_end_the_run_and_skips_no_record(
    begun: tuple[Consumer, str], coordinator: HandCoordinator
):
    consumer, topic = begun
    coordinator.run_start(consumer.consumer_id, dict.fromkeys(partitions_of(topic, 1), 0))
    found = read(consumer, 2 * _COUNT - 10)
    assert [r.offset for r in found if r.partition == 0] == list(range(10, _COUNT))
    assert [r.offset for r in found if r.partition == 1] == list(range(_COUNT))


def test_seek_and_pause_end_the_run(begun: tuple[Consumer, str], coordinator: HandCoordinator):
    consumer, topic = begun
    partition, other = partitions_of(topic, 0, 1)
    consumer.seek(partition, 150)
    assert [record.offset for record in read(consumer, 3)] == [150, 151, 152]
    consumer.pause([partition])
    coordinator.run_start(consumer.consumer_id, {other: 0})
    assert {record.partition for record in read(consumer, _COUNT)} == {1}
    consumer.resume([partition])
    assert [record.offset for record in read(consumer, 2)] == [153, 154]


def test_a_batch_continues_where_the_iteration_ended(begun: tuple[Consumer, str]):
    consumer, _ = begun
    batch = consumer.consume(20, 10)
    assert [record.offset for record in batch] == list(range(10, 30))
    assert [record.offset for record in read(consumer, 3)] == [30, 31, 32]


def test_messages_are_handed_out_like_records(begun: tuple[Consumer, str], coordinator: HandCoordinator):
    consumer, topic = begun
    messages = consumer.consume_messages(20, 10)
    assert [(message.topic(), message.offset()) for message in messages] == [(topic, n) for n in range(10, 30)]
    assert all(message.error() is None for message in messages)
    (one,) = consumer.consume_messages(1, 10)
    assert one.offset() == 30
    batch = consumer.consume(5, 10)
    assert [record.offset for record in batch] == list(range(31, 36))
    assert [message.offset() for message in consumer.consume_messages(3, 10)] == [36, 37, 38]

    (moving,) = partitions_of(topic, 0)
    command = coordinator.stop(consumer.consumer_id, [moving])
    eventually(lambda: moving not in consumer.assignment())
    assert not coordinator.acknowledged(command)  # the last messages are still in hand
    assert consumer.consume_messages(5, 0.2) == []
    coordinator.await_acknowledged(command)
    assert coordinator.offset(moving) == 39
    assert consumer.stats.records == 10 + 29


def test_a_record_counts_as_consumed_when_the_next_one_is_requested(
    begun: tuple[Consumer, str], coordinator: HandCoordinator
):
    consumer, topic = begun
    (partition,) = partitions_of(topic, 0)
    eventually(lambda: coordinator.offset(partition) == 9)  # the tenth record is in hand
    consumer.commit()
    assert coordinator.offset(partition) == 10
    read(consumer, 1)
    assert consumer.position(partition) == 11
    assert coordinator.offset(partition) == 10
    read(consumer, 1)
    eventually(lambda: coordinator.offset(partition) == 11)


def test_a_forked_child_hands_out_no_records_of_the_run(begun: tuple[Consumer, str]):
    consumer, _ = begun
    child = os.fork()
    if child == 0:
        try:
            consumer.poll(0.1)
        except ConsumerError:
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert [record.offset for record in read(consumer, 1)] == [10]
