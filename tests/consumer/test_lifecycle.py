"""Tests of a consumer's end, and of its methods after exceptions, signals and forks, and in several threads."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from kafka_coord import Consumer, ConsumerClosed, ConsumerError, MembershipLost, Record, SettingsError, TopicPartition
from kafka_coord.dev.cluster.kafka import KafkaCluster
from tests.consumer.by_hand import HandCoordinator
from tests.consumer.conftest import partitions_of
from tests.consumer.reading import Reader, read
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

Produce = Callable[..., list[bytes]]
MakeConsumer = Callable[..., Consumer]
MakeTopic = Callable[..., str]


def test_the_normal_end_of_the_with_block_commits_the_record_in_hand(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    produce(topic, 0, 10)
    with make_consumer(topics=[topic]) as consumer:
        coordinator.run_start(consumer.consumer_id, [partition])
        for record in consumer:
            if record.offset == 3:
                break
        for record in consumer:  # iteration may be left and continued
            assert record.offset == 4
            break

    assert coordinator.offset(partition) == 5
    assert coordinator.member(consumer.consumer_id) is None


def test_after_an_exception_in_the_loop_its_record_is_not_committed_and_the_consumer_leaves(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    def work(consumer: Consumer) -> None:
        with consumer:
            for record in consumer:
                if record.offset == 3:
                    raise RuntimeError("the application's own mistake")

    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    produce(topic, 0, 10)
    consumer = make_consumer(topics=[topic])
    coordinator.run_start(consumer.consumer_id, [partition])

    with pytest.raises(RuntimeError, match="own mistake"):
        work(consumer)

    assert coordinator.offset(partition) == 3
    assert coordinator.member(consumer.consumer_id) is None


def test_a_keyboard_interrupt_ends_a_waiting_consumer_cleanly(
    kafka_cluster: KafkaCluster, group: str, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    produce(topic, 0, 5)
    program = f"""
import faulthandler
faulthandler.dump_traceback_later(15, repeat=True)
from kafka_coord import Consumer
with Consumer({kafka_cluster.zookeeper!r}, group={group!r}, topics=[{topic!r}], consumer_id="c",
              auto_offset_reset="earliest") as consumer:
    for record in consumer:
        print(record.offset, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            coordinator.run_start("c", [partition])
            assert process.stdout is not None
            assert [int(process.stdout.readline()) for _ in range(5)] == [0, 1, 2, 3, 4]
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            pytest.fail(process.communicate()[1].decode())  # shows what its threads were waiting for
        finally:
            process.kill()
    assert process.returncode in {-signal.SIGINT, 130}
    assert errors.rstrip().endswith(b"KeyboardInterrupt")
    assert coordinator.member("c") is None
    eventually(lambda: coordinator.offset(partition) >= 4)


def test_a_program_that_ends_without_closing_its_consumer_leaves_the_group(
    kafka_cluster: KafkaCluster, group: str, coordinator: HandCoordinator
) -> None:
    program = f"""
from kafka_coord import Consumer
consumer = Consumer({kafka_cluster.zookeeper!r}, group={group!r}, topics=["t"], consumer_id="c",
                    session_timeout_ms=60_000)
while not consumer.registered:
    consumer.poll(0.01)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert coordinator.member("c") is None


def test_a_slow_application_that_was_evicted_registers_again_when_it_returns(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    produce(topic, 0, 2)
    consumer = make_consumer(topics=[topic])
    incarnation = coordinator.await_member(consumer.consumer_id).incarnation
    coordinator.run_start(consumer.consumer_id, partitions_of(topic, 0))
    assert len(read(consumer, 1)) == 1

    coordinator.evict(consumer.consumer_id)
    eventually(lambda: consumer.stats.losses == 1)
    assert coordinator.member(consumer.consumer_id) is None
    with pytest.raises(MembershipLost, match="evicted"):
        consumer.commit()

    assert consumer.poll(0.01) is None
    coordinator.await_member(consumer.consumer_id, other_than=incarnation)
    assert coordinator.offset(TopicPartition(topic, 0)) == -1


def test_calls_of_a_closed_consumer_raise_an_error(
    make_consumer: MakeConsumer, make_topic: MakeTopic, coordinator: HandCoordinator
) -> None:
    consumer = make_consumer(topics=[make_topic()])
    consumer.close()
    consumer.close()
    for use in (consumer.poll, consumer.consume, consumer.commit, consumer.committed):
        with pytest.raises(ConsumerClosed, match="is closed"):
            use()
    assert list(consumer) == []


def test_close_in_another_thread_ends_the_iteration(
    make_consumer: MakeConsumer, make_topic: MakeTopic, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    consumer = make_consumer(topics=[topic])
    coordinator.run_start(consumer.consumer_id, partitions_of(topic, 0))
    with Reader(consumer) as reader:
        consumer.close()
    assert reader.error is None


def test_close_waits_for_the_record_that_another_thread_has_in_hand(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    produce(topic, 0, 5)
    consumer = make_consumer(topics=[topic])
    coordinator.run_start(consumer.consumer_id, [partition])
    in_hand, go_on = threading.Event(), threading.Event()
    given: list[int] = []

    def application() -> None:
        for record in consumer:
            given.append(record.offset)
            if record.offset == 2:
                in_hand.set()
                assert go_on.wait(30)

    threads = [threading.Thread(target=application), threading.Thread(target=consumer.close)]
    threads[0].start()
    assert in_hand.wait(20)
    threads[1].start()
    eventually(lambda: not consumer.assignment())
    assert coordinator.member(consumer.consumer_id) is not None
    go_on.set()
    for thread in threads:
        thread.join(20)

    assert given == [0, 1, 2], "no more records may be handed out"
    assert coordinator.member(consumer.consumer_id) is None
    assert coordinator.offset(partition) == 3


def test_close_does_not_wait_for_a_thread_that_ended_with_a_record_in_hand(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    (partition,) = partitions_of(topic, 0)
    produce(topic, 0, 5)
    consumer = make_consumer(topics=[topic])
    coordinator.run_start(consumer.consumer_id, [partition])
    application = threading.Thread(target=read, args=(consumer, 3))
    application.start()
    application.join(20)

    consumer.close(timeout_s=1_000)

    assert coordinator.offset(partition) == 2


def test_the_error_in_a_forked_child_says_to_create_a_new_consumer(
    make_consumer: MakeConsumer, make_topic: MakeTopic, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    consumer = make_consumer(topics=[topic])
    coordinator.run_start(consumer.consumer_id, partitions_of(topic, 0))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            consumer.poll(0.1)
        except ConsumerError as error:
            os.write(writing, str(error).encode())
        consumer.close()  # this must not affect the parent's consumer
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        message = pipe.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    assert "fork" in message
    assert "create a consumer in each process" in message
    assert consumer.registered
    assert consumer.assignment() == set(partitions_of(topic, 0))


def test_a_second_thread_that_reads_a_stream_gets_an_error(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    produce(topic, 0, 1)
    consumer = make_consumer(topics=[topic])
    coordinator.run_start(consumer.consumer_id, partitions_of(topic, 0))
    with Reader(consumer) as reader:
        eventually(lambda: reader.records)  # now the reader waits for the next record
        with pytest.raises(ConsumerError, match="as many streams as there are threads"):
            consumer.poll(5)


def test_subscribe_waits_for_the_record_in_hand_and_starts_a_new_incarnation(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic, another = make_topic(), make_topic()
    produce(topic, 0, 3)
    told: list[frozenset[TopicPartition]] = []
    consumer = make_consumer(topics=[topic], on_revoke=told.append)
    before = coordinator.await_member(consumer.consumer_id)
    coordinator.run_start(consumer.consumer_id, partitions_of(topic, 0))
    assert read(consumer, 1)

    consumer.subscribe([topic, another])
    assert consumer.subscription.topics == {topic: 1, another: 1}
    eventually(lambda: not consumer.assignment())
    assert coordinator.member(consumer.consumer_id) == before, "a record is in hand"
    assert consumer.poll(0.0) is None
    after = coordinator.await_member(consumer.consumer_id, other_than=before.incarnation)
    assert after.subscription == consumer.subscription
    assert told == [frozenset(partitions_of(topic, 0))]
    assert (consumer.stats.losses, coordinator.offset(*partitions_of(topic, 0))) == (0, 1)
    coordinator.run_start(consumer.consumer_id, partitions_of(topic, 0))
    assert [record.offset for record in read(consumer, 2)] == [1, 2]
    with pytest.raises(SettingsError, match="1 streams"):
        consumer.subscribe({topic: 2})


def test_a_stopped_consumer_ends_the_loop_after_the_record_in_hand(
    make_consumer: MakeConsumer, make_topic: MakeTopic, produce: Produce, coordinator: HandCoordinator
) -> None:
    topic = make_topic()
    produce(topic, 0, 100)
    consumer = make_consumer(topics=[topic])
    coordinator.run_start(consumer.consumer_id, partitions_of(topic, 0))
    given = 0
    with consumer:
        for _record in consumer:
            given += 1
            if given == 7:
                assert repr(consumer).endswith("holds 1 partitions>")
                consumer.stop()
        assert (consumer.poll(5), consumer.consume(5, 5), consumer.stopped) == (None, [], True)
    assert given == 7
    assert coordinator.offset(*partitions_of(topic, 0)) == 7
    assert repr(consumer).endswith("closed>")


def test_a_consumer_with_several_streams_cannot_be_read_directly(
    make_consumer: MakeConsumer, make_topic: MakeTopic
) -> None:
    consumer = make_consumer(topics=[make_topic()], streams=2)
    with pytest.raises(ConsumerError, match="has 2 streams"):
        consumer.poll(0.1)


def test_a_record_has_all_of_kafkas_fields_and_can_be_pickled(
    kafka_cluster: KafkaCluster, make_consumer: MakeConsumer, make_topic: MakeTopic, coordinator: HandCoordinator
) -> None:
    from confluent_kafka import Producer

    topic = make_topic()
    producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers, "log_level": 0})
    producer.produce(topic, b"value", b"key", 0, timestamp=1_700_000_000_000, headers=[("h", b"1"), ("h", None)])
    producer.produce(topic, None, b"gone", 0)
    assert producer.flush(90) == 0
    consumer = make_consumer(topics=[topic])
    coordinator.run_start(consumer.consumer_id, partitions_of(topic, 0))

    record, tombstone = read(consumer, 2)

    assert (record.topic, record.partition, record.offset) == (topic, 0, 0)
    assert (record.key, record.value) == (b"key", b"value")
    assert (record.timestamp_ms, record.timestamp_type) == (1_700_000_000_000, "create")
    assert record.headers == (("h", b"1"), ("h", None))
    assert tombstone.value is None
    copied = pickle.loads(pickle.dumps(record))  # noqa: S301 - our own
    assert isinstance(copied, Record)
    assert copied == record
    assert copied.headers == record.headers
    assert repr(record) == f"Record({topic}-0@0 key=b'key' value=b'value')"
