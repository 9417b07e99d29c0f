"""Tests that take native groups over, and give them back, while their members run."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from kafka_coord.grouplog.manager import partition_of
from kafka_coord.model import GroupKind, TopicPartition
from kafka_coord.zk.kinds import read_kinds
from tests.cli.running import Run
from tests.frontends.kafka.conftest import Front, end_term
from tests.frontends.kafka.records import PARTITIONS, consumed, filled, kind, member, members
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def topic(front: Front, service: object) -> str:
    del service
    return filled(front)


@pytest.fixture
def group() -> str:
    return f"moving-{next(_numbers)}"


@dataclass
class Worker:
    """A member that reads and commits all the time. Knows every commit that was acknowledged."""

    consumer: Consumer
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    rebalances: int = 0
    went_back: list[str] = field(default_factory=list)

    def run(self, ends: threading.Event) -> None:
        while not ends.is_set():
            message = self.consumer.poll(0.02)
            if message is None or message.error():
                continue
            try:
                told = self.consumer.commit(message, asynchronous=False)
            except KafkaException:  # a commit that is refused is no acknowledged one
                continue
            for one in told or ():
                at = TopicPartition(one.topic, one.partition)
                if one.offset < self.committed.get(at, 0):
                    self.went_back.append(f"{at}: {one.offset} after {self.committed[at]}")
                self.committed[at] = max(one.offset, self.committed.get(at, 0))


@contextmanager
def working(servers: str, group: str, topic: str, count: int, *names: str) -> Iterator[list[Worker]]:
    ends = threading.Event()
    workers = []
    for number in range(count):
        static = {"group.instance.id": names[number]} if number < len(names) else {}
        slow = {"session.timeout.ms": 30_000}  # a group is frozen for a third of it at most
        settings = {"client.id": f"worker-{number}", "heartbeat.interval.ms": 500, **slow, **static}
        consumer = member(servers, group, topic, **settings)
        worker = Worker(consumer)

        def assigned(_consumer: Consumer, _partitions: object, of: Worker = worker) -> None:
            of.rebalances += 1

        consumer.subscribe([topic], on_assign=assigned)
        workers.append(worker)
    threads = [threading.Thread(target=one.run, args=(ends,)) for one in workers]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: all(one.committed for one in workers) and _share(workers), within_s=60)
        yield workers
    finally:
        ends.set()
        for thread in threads:
            thread.join()
        for worker in workers:
            worker.consumer.close()


def _share(workers: list[Worker]) -> bool:
    return sum(len(one.consumer.assignment()) for one in workers) == PARTITIONS


@contextmanager
def flowing(front: Front, topic: str) -> Iterator[None]:
    """Writes records all the time."""
    ends = threading.Event()
    producer = Producer({"bootstrap.servers": front.brokers, "linger.ms": 5})

    def produce() -> None:
        for number in itertools.count():
            if ends.wait(0.002):
                break
            producer.produce(topic, value=str(number), partition=number % PARTITIONS)
            producer.poll(0)
        producer.flush(30)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def stored(servers: str, group: str, topic: str) -> dict[int, int]:
    """The group's offsets, as the coordinator behind ``servers`` has them."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    admin = AdminClient({"bootstrap.servers": servers})
    asked = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([asked])[group].result(30)
    return {one.partition: one.offset for one in found.topic_partitions if one.topic == topic}


def done(coord: Run, verb: str, group: str) -> bool:
    """Whether the group was moved. A refused move may be tried again."""
    ran = coord("groups", verb, group, "--execute")
    logging.warning("%s", ran.err)
    return ran.code == 0


def is_fenced(front: Front, group: str) -> bool:
    (only,) = members(front.brokers, group) or [""]
    return only.startswith("kafka-coord")


def never_lost(workers: list[Worker], servers: str, group: str, topic: str) -> None:
    """No acknowledged commit is lost or has gone back."""
    acknowledged = [dict(one.committed) for one in workers]  # first: the workers go on
    offsets = stored(servers, group, topic)
    for worker, committed in zip(workers, acknowledged, strict=True):
        assert not worker.went_back
        for at, offset in committed.items():
            assert offsets[at.partition] >= offset, f"the commit of {at} at {offset} was lost"


def test_a_group_is_taken_over_and_given_back_under_load(front: Front, topic: str, group: str, coord: Run) -> None:
    consumed(front.brokers, group, topic, 100)
    with flowing(front, topic), working(front.bootstrap, group, topic, 3, "static-1") as workers:
        eventually(lambda: kind(front, group) is GroupKind.NATIVE)
        before = [one.rebalances for one in workers]
        eventually(lambda: done(coord, "take-over", group), within_s=60)
        assert kind(front, group) is GroupKind.CLIENT_ASSIGNED
        known = [dict(one.committed) for one in workers]
        eventually(lambda: all(one.committed != then for one, then in zip(workers, known, strict=True)), within_s=30)
        assert [one.rebalances for one in workers] == before, "the members go on with their partitions"
        assert is_fenced(front, group), "the fence stays"
        never_lost(workers, front.bootstrap, group, topic)

        eventually(lambda: done(coord, "give-back", group), within_s=60)
        assert kind(front, group) is GroupKind.NATIVE
        eventually(lambda: members(front.brokers, group) == ["worker-0", "worker-1", "worker-2"], within_s=60)
        known = [dict(one.committed) for one in workers]
        eventually(lambda: all(one.committed != then for one, then in zip(workers, known, strict=True)), within_s=60)
        never_lost(workers, front.brokers, group, topic)


def test_a_member_behind_the_brokers_own_listener_is_named_and_nothing_is_changed(
    front: Front, topic: str, group: str, coord: Run
) -> None:
    consumed(front.brokers, group, topic, 10)
    with working(front.bootstrap, group, topic, 1) as (worker,):
        stranger = member(front.brokers, group, topic, **{"client.id": "stranger"})
        try:
            eventually(lambda: stranger.poll(0.05) or stranger.assignment(), within_s=30)
            before = worker.rebalances

            def refused() -> bool:
                ran = coord("groups", "take-over", group, "--execute")
                assert ran.code == 6
                return "stranger at 127.0.0.1" in ran.err

            eventually(refused, within_s=60)
            assert kind(front, group) is GroupKind.NATIVE
            assert not read_kinds(front.store, [group])[group].moving
            eventually(lambda: members(front.brokers, group) == ["stranger", "worker-0"])
            assert worker.rebalances <= before + 1
        finally:
            stranger.close()


def test_nobody_can_join_the_namesake_of_a_group_that_was_taken_over(
    front: Front, topic: str, group: str, coord: Run
) -> None:
    found = consumed(front.brokers, group, topic, 50)
    eventually(lambda: done(coord, "take-over", group), within_s=60)
    eventually(lambda: is_fenced(front, group))
    assert sum(offset for offset in stored(front.bootstrap, group, topic).values() if offset > 0) == len(found)
    late = member(front.brokers, group, topic)
    try:
        assert not any(late.poll(0.5) and not late.poll(0).error() for _ in range(4) if late.assignment())
        assert not late.assignment()
    finally:
        late.close()
    end_term(front, partition_of(group))
    eventually(lambda: is_fenced(front, group))


def test_the_dry_run_and_a_group_that_does_not_exist(front: Front, topic: str, group: str, coord: Run) -> None:
    consumed(front.brokers, group, topic, 50)
    consumed(front.bootstrap, group, topic, 0)
    ran = coord("groups", "take-over", group)
    assert ran.code == 0
    assert f"group {group} is Empty" in ran.out
    assert "nothing was changed" in ran.err
    assert kind(front, group) is GroupKind.NATIVE
    assert coord("groups", "take-over", f"{group}-none", "--execute").code != 0
