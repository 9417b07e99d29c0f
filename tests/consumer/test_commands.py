"""Tests of how a consumer carries out start-fetcher and stop-fetcher: which records it hands out and commits, and when
it acknowledges."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pytest

from kafka_coord import Consumer, TopicPartition
from kafka_coord.errors import ConsumerClosed
from kafka_coord.model import NO_OFFSET, StartPoint
from kafka_coord.zk import layout
from tests.consumer.by_hand import HandCoordinator
from tests.consumer.conftest import partitions_of
from tests.consumer.reading import Reader, read
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

Produce = Callable[..., list[bytes]]
MakeConsumer = Callable[..., Consumer]
MakeTopic = Callable[..., str]


def test_a_started_partition_is_read_and_its_consumed_records_are_committed(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    values = produce(topic, 0, 10)
    consumer = make_consumer(topics=[topic], auto_commit_interval_ms=50)

    coordinator.run_start(consumer.consumer_id, [partition])
    records = read(consumer, 10)

    assert [record.value for record in records] == values
    assert [record.offset for record in records] == list(range(10))
    assert {record.key for record in records} == {b"k"}
    assert consumer.assignment() == {partition}
    eventually(lambda: coordinator.offset(partition) == 9)  # the application has the tenth record in hand
    assert consumer.poll(0.01) is None
    eventually(lambda: coordinator.offset(partition) == 10)


def test_a_stop_waits_for_the_record_in_hand_and_commits_its_offset(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic(2)
    moving, staying = partitions_of(topic, 0, 1)
    produce(topic, 0, 5)
    produce(topic, 1, 5)
    consumer = make_consumer(topics={topic: 2}, auto_commit_interval_ms=50)
    coordinator.run_start(consumer.consumer_id, {moving: StartPoint(0, 0), staying: StartPoint(0, 1)})
    slow, quick = consumer.streams
    (first,) = read(slow, 1)

    stop = coordinator.stop(consumer.consumer_id, [moving])

    eventually(lambda: consumer.assignment() == {staying})  # it has received the command
    assert len(read(quick, 5)) == 5
    eventually(lambda: coordinator.offset(staying) == 4)  # and has continued since
    assert not coordinator.acknowledged(stop)
    assert (first.topic, first.partition, first.offset) == (topic, 0, 0)

    assert slow.poll(0.1) is None  # the application returns, and the four queued records are not handed out
    coordinator.await_acknowledged(stop)
    assert coordinator.offset(moving) == 1


def test_queued_records_are_dropped_at_a_stop_and_the_next_owner_reads_them(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    values = produce(topic, 0, 20)
    first, second = make_consumer(topics=[topic]), make_consumer(topics=[topic])
    coordinator.run_start(first.consumer_id, [partition])
    before = read(first, 3)

    stop = coordinator.stop(first.consumer_id, [partition])
    eventually(lambda: not first.assignment())
    assert first.poll(0.05) is None
    coordinator.await_acknowledged(stop)
    assert coordinator.offset(partition) == 3
    coordinator.run_start(second.consumer_id, [partition])
    after = read(second, 17)

    assert [record.value for record in before + after] == values


def test_a_stop_is_acknowledged_at_once_while_the_application_is_blocked_in_poll(
    make_consumer: MakeConsumer, make_topic: MakeTopic, coordinator: HandCoordinator
) -> None:
    topic = make_topic(2)
    consumer = make_consumer(topics=[topic])
    both = partitions_of(topic, 0, 1)
    coordinator.run_start(consumer.consumer_id, both)

    def blocked() -> None:
        with contextlib.suppress(ConsumerClosed):
            consumer.poll(120)  # no records arrive for longer than the wait for a stop

    application = threading.Thread(target=blocked)
    application.start()
    for _ in range(10):
        coordinator.run_stop(consumer.consumer_id, both[:1])
        coordinator.run_start(consumer.consumer_id, both[:1])
    assert application.is_alive()
    consumer.close()
    application.join(20)
    assert not application.is_alive()


def test_partitions_that_do_not_move_are_read_during_a_rebalance(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic(2)
    staying, moving = partitions_of(topic, 0, 1)
    consumer = make_consumer(topics=[topic])
    other = make_consumer(topics=[topic])
    coordinator.run_start(consumer.consumer_id, [staying, moving])
    with Reader(consumer) as here, Reader(other) as there:
        stayed: list[bytes] = []
        moved: list[bytes] = []
        for _ in range(5):
            for giver, taker in ((consumer, other), (other, consumer)):
                moved.extend(produce(topic, 1, 40))
                stayed.extend(produce(topic, 0, 40))
                coordinator.run_stop(giver.consumer_id, [moving])
                stayed.extend(produce(topic, 0, 40))
                # now the moving partition has no owner, but the other one is still read
                eventually(lambda: [v for v in here.values if v in set(stayed)] == stayed)
                coordinator.run_start(taker.consumer_id, [moving])
        eventually(lambda: len(here.records) + len(there.records) == len(stayed) + len(moved))

    seen_moving = [r for r in here.records + there.records if r.partition == 1]
    assert sorted(record.offset for record in seen_moving) == list(range(len(moved)))  # no duplicates, no gaps
    assert there.records
    assert [r.value for r in here.records if r.partition == 0] == stayed


@pytest.mark.parametrize(("started", "stopped"), [("on_assign", "on_revoke"), ("on_start", "on_stop")])
def test_commands_are_carried_out_in_the_order_of_their_numbers(
    started: str, stopped: str, make_consumer: MakeConsumer, make_topic: MakeTopic, coordinator: HandCoordinator
) -> None:
    topic = make_topic(3)
    zero, one, two = partitions_of(topic, 0, 1, 2)
    told: list[tuple[str, frozenset[TopicPartition]]] = []
    consumer = make_consumer(
        topics=[topic],
        **{
            started: lambda partitions: told.append(("start", partitions)),
            stopped: lambda partitions: told.append(("stop", partitions)),
        },
    )

    coordinator.start(consumer.consumer_id, [zero, one])
    coordinator.stop(consumer.consumer_id, [zero])
    coordinator.start(consumer.consumer_id, [two])
    last = coordinator.stop(consumer.consumer_id, [one])
    coordinator.await_acknowledged(last)

    assert told == [("start", {zero, one}), ("stop", {zero}), ("start", {two}), ("stop", {one})]
    assert consumer.assignment() == {two}
    assert coordinator.outstanding(consumer.consumer_id) == ()


def test_a_command_for_a_later_incarnation_is_left_in_the_channel(
    make_consumer: MakeConsumer, make_topic: MakeTopic, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    consumer = make_consumer(topics=[topic])
    now = coordinator.await_member(consumer.consumer_id).incarnation

    command = coordinator.start(consumer.consumer_id, [partition], incarnation=now + 1_000_000)

    coordinator.await_member(consumer.consumer_id, other_than=now)
    assert coordinator.store.exists(command) is not None, "a removal would acknowledge it for the later incarnation"
    assert consumer.stats.losses >= 1
    assert (consumer.stats.starts, consumer.stats.dropped_commands) == (0, 0)


def test_a_command_for_an_earlier_incarnation_is_removed_without_effect(
    make_consumer: MakeConsumer, make_topic: MakeTopic, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    consumer = make_consumer(topics=[topic])
    now = coordinator.await_member(consumer.consumer_id).incarnation

    command = coordinator.start(consumer.consumer_id, [partition], incarnation=now - 1)

    coordinator.await_acknowledged(command)  # waits until the command is removed
    assert consumer.assignment() == frozenset()
    eventually(lambda: consumer.stats.dropped_commands == 1)
    assert consumer.stats.starts == 0


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b'{"version":2,"type":"start-fetcher"}',
        b'{"version":1,"type":"open-fetcher","generation":1,"epoch":1,"incarnation":1,"partitions":{}}',
        b'{"version":1,"type":"stop-fetcher","generation":1,"epoch":1,"incarnation":1,"partitions":{}}',
    ],
    ids=["empty", "truncated", "unknown version", "unknown type", "stop under the name of a start"],
)
def test_an_unreadable_command_is_not_acknowledged_and_delays_later_ones(
    value: bytes, make_consumer: MakeConsumer, make_topic: MakeTopic, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    consumer = make_consumer(topics=[topic])
    coordinator.await_member(consumer.consumer_id)
    channel = layout.channel(coordinator.group, consumer.consumer_id)

    unreadable = coordinator.store.create(f"{channel}/start-", value, sequence=True)
    later = coordinator.start(consumer.consumer_id, [partition])

    eventually(lambda: consumer.stats.malformed_commands == 1)
    for reported in (2, 3):  # the report of the second stray znode shows that the first listing is complete
        coordinator.store.create(f"{channel}/stray-{reported}", b"")
        eventually(lambda reported=reported: consumer.stats.malformed_commands == reported)
    assert not coordinator.acknowledged(unreadable)
    assert not coordinator.acknowledged(later)
    assert consumer.assignment() == frozenset()

    coordinator.store.delete(unreadable)  # as an operator would
    coordinator.await_acknowledged(later)
    assert consumer.assignment() == {partition}


def test_a_znode_in_the_channel_that_is_no_command_is_left_unchanged(
    make_consumer: MakeConsumer, make_topic: MakeTopic, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    consumer = make_consumer(topics=[topic])
    coordinator.await_member(consumer.consumer_id)
    stray = f"{layout.channel(coordinator.group, consumer.consumer_id)}/a-note"
    coordinator.store.create(stray, b"hello")

    coordinator.run_start(consumer.consumer_id, partitions_of(topic, 0))

    assert coordinator.store.get(stray).data == b"hello"
    assert consumer.stats.malformed_commands == 1


def test_callbacks_that_raise_do_not_delay_a_handover(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    def fails(_: frozenset[TopicPartition]) -> None:
        raise RuntimeError("the application's own mistake")

    topic = make_topic()
    produce(topic, 0, 1)
    consumer = make_consumer(topics=[topic], on_start=fails, on_stop=fails)

    coordinator.run_start(consumer.consumer_id, partitions_of(topic, 0))
    assert len(read(consumer, 1)) == 1
    consumer.commit()
    coordinator.run_stop(consumer.consumer_id, partitions_of(topic, 0))


def test_a_repeated_start_has_no_effect(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    produce(topic, 0, 4)
    consumer = make_consumer(topics=[topic])
    coordinator.run_start(consumer.consumer_id, {partition: NO_OFFSET})
    assert [record.offset for record in read(consumer, 2)] == [0, 1]

    coordinator.run_start(consumer.consumer_id, {partition: 0})

    assert [record.offset for record in read(consumer, 2)] == [2, 3]


def test_each_stream_can_be_read_in_its_own_thread(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic(4)
    values = [produce(topic, number, 25) for number in range(4)]
    consumer = make_consumer(topics={topic: 2})
    assert coordinator.await_member(consumer.consumer_id).subscription.topics == {topic: 2}

    coordinator.run_start(
        consumer.consumer_id, {tp: StartPoint(NO_OFFSET, tp.partition % 2) for tp in partitions_of(topic, 0, 1, 2, 3)}
    )

    first, second = consumer.streams
    assert first.assignment() == set(partitions_of(topic, 0, 2))
    with Reader(first) as even, Reader(second) as odd:
        eventually(lambda: len(even.records) == len(odd.records) == 50)
        consumer.close()
    assert {record.partition for record in even.records} == {0, 2}
    assert [record.value for record in odd.records if record.partition == 3] == values[3]
    assert all(coordinator.offset(tp) >= 24 for tp in partitions_of(topic, 0, 1, 2, 3))


def test_a_partition_added_to_a_topic_is_read_soon_after_its_start(
    make_consumer: MakeConsumer, make_topic: MakeTopic, topics: object, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic(1)
    consumer = make_consumer(topics=[topic])
    with Reader(consumer) as reader:
        coordinator.run_start(consumer.consumer_id, partitions_of(topic, 0))
        for number in (1, 2):  # on its own, librdkafka notices only the first quickly
            topics.add_partitions(topic, number + 1)  # type: ignore[attr-defined]
            values = produce(topic, number, 3)
            coordinator.run_start(consumer.consumer_id, partitions_of(topic, number))
            eventually(lambda v=values: reader.values[-3:] == v, within_s=20)
