"""Creates a topic with records for stock clients, reads it, and looks at the groups that do."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from kafka_coord import Consumer as CoordConsumer
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.groups.copies import KafkaOffsetStore
from kafka_coord.model import GroupKind, TopicPartition
from kafka_coord.zk.kinds import read_kinds
from tests.frontends.kafka.conftest import Front
from tests.frontends.kafka.feeding import Feed
from tests.waiting import eventually

RECORDS, PARTITIONS = 3_000, 6
_OF_COORDINATOR = {"session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"}
_numbers = itertools.count(1)


def filled(front: Front) -> str:
    """Creates a topic, and writes all records to it through the instances."""
    name = f"stock-{next(_numbers)}"
    TopicAdmin(front.cluster.bootstrap_servers).create(name, PARTITIONS, replication=3)
    producer = Producer({"bootstrap.servers": front.bootstrap, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(name, key=str(number), value=str(number))
    assert producer.flush(60) == 0
    return name


def managed_group(front: Front, topic: str, name: str) -> str:
    """Creates a managed group: a consumer of this project joins it and leaves again. Returns its name."""
    with CoordConsumer(zookeeper=front.cluster.zookeeper, group=name, topics=[topic]) as own:
        eventually(lambda: own.poll(0.05) or len(own.assignment()) == PARTITIONS, within_s=30)
    return name


def read(consumers: list[Consumer], count: int, within_s: float = 60.0) -> list[int]:
    found: list[int] = []
    deadline = time.monotonic() + within_s
    while len(found) < count and time.monotonic() < deadline:
        for one in consumers:
            found += [int(m.value()) for m in one.consume(500, 0.05) if not m.error()]
    return found


def member(servers: str, group: str, topic: str, **more: object) -> Consumer:
    settings = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "session.timeout.ms": 6_000, **more}
    if settings.get("group.protocol") == "consumer":  # then the coordinator sets these
        settings = {key: one for key, one in settings.items() if key not in _OF_COORDINATOR}
    made = Consumer({"bootstrap.servers": servers, "group.id": group, **settings})
    made.subscribe([topic])
    return made


def consumed(servers: str, group: str, topic: str, count: int, **more: object) -> list[int]:
    """Reads ``count`` records as the only member, and commits after them."""
    one = member(servers, group, topic, **more)
    try:
        eventually(lambda: one.poll(0.05) or one.assignment(), within_s=60) if not count else None
        found = read([one], count)
        if found:
            one.commit(asynchronous=False)
        return found
    finally:
        one.close()


def members(servers: str, group: str) -> list[str]:
    """The client ids of the group's members, as its coordinator behind ``servers`` describes them."""
    found = KafkaOffsetStore("there", servers, {}, 30.0).read([group])[group]
    assert not found.problem
    return sorted(found.members)


def kind(front: Front, group: str) -> GroupKind | None:
    record = read_kinds(front.store, [group]).get(group)
    return None if record is None else record.kind


@dataclass
class Worker:
    """A member that reads and commits all the time. Knows every commit that was acknowledged."""

    consumer: Consumer
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    rebalances: int = 0
    went_back: list[str] = field(default_factory=list)
    is_closed: bool = False

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
def working(
    servers: str, group: str, topic: str, count: int, *names: str, beside: Sequence[Worker] = (), **more: object
) -> Iterator[list[Worker]]:
    """Runs members that read and commit, until they have all partitions together with those that run already."""
    ends = threading.Event()
    workers = []
    for number in range(count):
        static = {"group.instance.id": names[number]} if number < len(names) else {}
        slow = {"session.timeout.ms": 30_000}  # a group is frozen for a third of it at most
        settings = {"client.id": f"worker-{number}", "heartbeat.interval.ms": 500, **slow, **static, **more}
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
        eventually(lambda: all(one.committed for one in workers) and have_all([*beside, *workers]), within_s=60)
        yield workers
    finally:
        ends.set()
        for thread in threads:
            thread.join()
        for worker in workers:
            worker.consumer.close()
            worker.is_closed = True


def have_all(workers: list[Worker]) -> bool:
    return sum(len(one.consumer.assignment()) for one in workers) == PARTITIONS


def flowing(front: Front, topic: str) -> AbstractContextManager[Feed]:
    """Writes records all the time."""
    return Feed(front.brokers, topic, PARTITIONS, every_s=0.01).running()


def stored(servers: str, group: str, topic: str) -> dict[int, int]:
    """The group's offsets, as the coordinator behind ``servers`` has them."""
    admin = AdminClient({"bootstrap.servers": servers})
    asked = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([asked])[group].result(30)
    return {one.partition: one.offset for one in found.topic_partitions if one.topic == topic}


def never_lost(workers: list[Worker], servers: str, group: str, topic: str) -> None:
    """No acknowledged commit is lost or has gone back."""
    acknowledged = [dict(one.committed) for one in workers]  # first: the workers go on
    offsets = stored(servers, group, topic)
    for worker, committed in zip(workers, acknowledged, strict=True):
        assert not worker.went_back
        for at, offset in committed.items():
            assert offsets[at.partition] >= offset, f"the commit of {at} at {offset} was lost"
