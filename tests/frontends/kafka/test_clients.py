"""Stock clients, configured with only ``bootstrap.servers``."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    ElectionType,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from kafka_coord.classic_groups.errors import Error
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.wire.frames import RequestHeader, request_frame
from kafka_coord.wire.messages import message
from tests.frontends.kafka.conftest import Front
from tests.frontends.kafka.peer import Member, Peer
from tests.frontends.kafka.records import PARTITIONS, RECORDS, filled, read
from tests.waiting import answered, eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def topic(front: Front) -> str:
    return filled(front)


@pytest.fixture
def consumer(front: Front, topic: str) -> Iterator[Callable[..., Consumer]]:
    made: list[Consumer] = []

    def make(group: str, **settings: Any) -> Consumer:
        given = {"bootstrap.servers": front.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        one = Consumer(given | {name.replace("_", "."): value for name, value in settings.items()})
        one.subscribe([topic])
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


def test_a_group_consumes_everything_once_through_joins_and_leaves(consumer: Callable[..., Consumer]) -> None:
    group = f"group-{next(_numbers)}"
    first, second = consumer(group), consumer(group)
    found = read([first, second], RECORDS)
    assert sorted(found) == list(range(RECORDS))
    polled = (one.poll(0.05) for one in itertools.cycle([first, second]))
    eventually(lambda: next(polled) or len(first.assignment()) == len(second.assignment()) == PARTITIONS // 2)

    first.close()

    eventually(lambda: second.poll(0.05) or len(second.assignment()) == PARTITIONS)


def test_a_consumer_that_assigns_itself_commits_and_an_operator_moves_its_offsets(front: Front, topic: str) -> None:
    group = f"alone-{next(_numbers)}"
    one = Consumer({"bootstrap.servers": front.bootstrap, "group.id": group, "enable.auto.commit": False})
    one.assign([TopicPartition(topic, 0, 0)])
    one.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
    admin = AdminClient({"bootstrap.servers": front.bootstrap})
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3)])
    (moved,) = admin.alter_consumer_group_offsets([wanted]).values()
    assert not moved.result(30).topic_partitions[0].error
    (found,) = one.committed([TopicPartition(topic, 0)], 30)
    assert found.offset == 3
    one.close()


def test_an_offset_of_a_partition_that_was_just_added_is_soon_committed(front: Front) -> None:
    name, admin = f"grows-{next(_numbers)}", TopicAdmin(front.cluster.bootstrap_servers)
    one = Consumer({"bootstrap.servers": front.bootstrap, "group.id": name, "enable.auto.commit": False})

    def commits(partition: int) -> bool:
        try:
            (done,) = one.commit(offsets=[TopicPartition(name, partition, 1)], asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            return False
        return done.error is None

    for partition, change in enumerate((partial(admin.create, name, 1), partial(admin.add_partitions, name, 2))):
        assert not commits(partition)
        change()
        eventually(lambda partition=partition: commits(partition), within_s=20)
    one.close()


def test_a_static_member_that_restarts_keeps_its_place(front: Front, consumer: Callable[..., Consumer]) -> None:
    group = f"static-{next(_numbers)}"
    stays = consumer(group, group_instance_id="stays")
    restarts = consumer(group, group_instance_id="restarts")
    eventually(
        lambda: (stays.poll(0.05), restarts.poll(0.05), len(stays.assignment()) == len(restarts.assignment()) == 3)[2],
        within_s=60,
    )
    held = {p.partition for p in restarts.assignment()}
    restarts.close()
    again = consumer(group, group_instance_id="restarts")
    eventually(lambda: (stays.poll(0.05), again.poll(0.05), len(again.assignment()) == 3)[2], within_s=60)
    assert {p.partition for p in again.assignment()} == held


def test_a_transactional_commit_of_offsets_is_refused_before_anything_is_written(front: Front, topic: str) -> None:
    producer = Producer({"bootstrap.servers": front.bootstrap, "transactional.id": f"tx-{next(_numbers)}"})
    producer.init_transactions(60)
    producer.begin_transaction()
    one = Consumer({"bootstrap.servers": front.bootstrap, "group.id": "in-transaction"})
    with pytest.raises(KafkaException) as raised:
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 7)], one.consumer_group_metadata(), 30)
    assert not raised.value.args[0].retriable()
    producer.abort_transaction(30)
    one.close()
    check = Consumer({"bootstrap.servers": front.bootstrap, "group.id": "in-transaction"})
    assert check.committed([TopicPartition(topic, 0)], 30)[0].offset < 0
    check.close()


def test_an_answer_that_is_not_read_stops_only_its_own_connection(front: Front, topic: str) -> None:
    """A large fetch fills its connection; commits over other connections continue meanwhile."""
    big = f"big-{next(_numbers)}"
    TopicAdmin(front.cluster.bootstrap_servers).create(big, 1, replication=1)
    producer = Producer({"bootstrap.servers": front.bootstrap, "message.max.bytes": 1_000_000})
    for _ in range(40):
        producer.produce(big, b"x" * 900_000)
    assert producer.flush(60) == 0
    leader = answered(producer, big).partitions[0].leader
    host, _, port = front.listeners[leader].address.rpartition(":")
    form = message("FetchRequest")
    part = form.struct("FetchPartition")(partition=0, partition_max_bytes=40 << 20)
    wanted = form(replica_id=-1, max_bytes=40 << 20, topics=(form.struct("FetchTopic")(topic=big, partitions=(part,)),))
    with socket.create_connection((host, int(port)), timeout=20) as slow:
        slow.sendall(request_frame(RequestHeader(1, 4, 1, "slow"), form, wanted))
        one = Consumer({"bootstrap.servers": front.bootstrap, "group.id": "beside", "enable.auto.commit": False})
        for offset in range(20):
            one.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        one.close()
        length = int.from_bytes(slow.recv(4, socket.MSG_WAITALL), "big")
        left = length
        while left > 0:
            got = slow.recv(min(left, 1 << 20))
            assert got
            left -= len(got)
        assert length > 30 << 20


@pytest.fixture(scope="module")
def everything_runs_afterwards(front: Front) -> Iterator[None]:
    """Starts what the last test killed, after that test: its processes and threads are the front's, not left behind."""
    yield
    front.cluster.start()
    for broker in front.cluster.brokers:
        if broker.broker_id not in front.listeners:
            front.start(broker.broker_id)
    admin = AdminClient({"bootstrap.servers": front.brokers})

    def preferred_brokers_lead() -> bool:  # otherwise, Kafka would elect them during a later test
        with contextlib.suppress(KafkaException):
            admin.elect_leaders(ElectionType.PREFERRED).result(30)
            topics = admin.list_topics(timeout=10).topics.values()
            return all(one.leader == one.replicas[0] for topic in topics for one in topic.partitions.values())
        return False

    eventually(preferred_brokers_lead, within_s=60, every_s=0.2)
    eventually(front.serves_every_group, within_s=60)


@pytest.mark.usefixtures("everything_runs_afterwards")
def test_offsets_outlive_the_instance_and_its_broker(front: Front, topic: str) -> None:
    """Instance and broker are killed: another broker leads the partition, and its instance loads the commits."""
    group = "survives"
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    one = Consumer({"bootstrap.servers": front.bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    one.subscribe([topic])
    assert len(read([one], RECORDS)) == RECORDS
    one.commit(asynchronous=False)
    before = {one.partition: one.offset for one in one.committed(partitions, 30)}
    assert sum(before.values()) == RECORDS
    leader = front.coordinator(partition_of(group))
    with Peer(front.listeners[leader]) as peer:
        names = (f"{group}-{number}" for number in itertools.count())
        member = Member(peer, next(name for name in names if partition_of(name) == partition_of(group)))
        beat = member.beat()
        front.stop(leader)
        assert member.told() == (beat, Error.NOT_COORDINATOR)
        assert peer.is_closed()
    front.cluster.broker(leader).kill()

    def committed() -> bool:
        try:
            found = one.committed(partitions, 10)
        except KafkaException:
            return False
        return {each.partition: each.offset for each in found if not each.error} == before

    eventually(committed, within_s=60)
    one.close()
