"""Tests of trouble with KIP-848 members: odd subscriptions, recreated topics, and held answers while something ends."""

from __future__ import annotations

import itertools
import select
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kafka_coord.classic_groups.errors import Error
from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.frontends.kafka.listener import KafkaListener
from kafka_coord.wire.messages import message
from kafka_coord.zk import layout
from tests.frontends.kafka.conftest import Front
from tests.frontends.kafka.counting import REQUESTS, growth, values
from tests.frontends.kafka.peer import Peer
from tests.frontends.kafka.records import PARTITIONS, filled
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
_numbers = itertools.count(1)
BEAT = "ConsumerGroupHeartbeat"
LEAVE = -1


@pytest.fixture(scope="module")
def topic(front: Front, service: CoordinatorService) -> str:
    return filled(front)


@pytest.fixture
def group() -> str:
    return f"managed-trouble-{next(_numbers)}"


@pytest.fixture
def peer(listener: KafkaListener) -> Iterator[Peer]:
    with Peer(listener) as made:
        yield made


class Member:
    """A KIP-848 member whose client software allows the listener to hold its heartbeats."""

    def __init__(self, peer: Peer, group: str, **topics: Any) -> None:
        self.peer, self.group, self.epoch = peer, group, 0
        peer.ask("ApiVersions", 3, client_software_name="librdkafka", client_software_version="2")
        self.joined = self.beat(topic_partitions=(), rebalance_timeout_ms=60_000, **topics)

    def fields(self, **fields: Any) -> dict[str, Any]:
        return {"group_id": self.group, "member_id": "m", "member_epoch": self.epoch} | fields

    def beat(self, **fields: Any) -> Any:
        found = self.peer.ask(BEAT, 1, **self.fields(**fields))
        if found.error_code == Error.NONE:
            self.epoch = found.member_epoch
        return found

    def rest(self) -> None:
        """Confirms its assignment, and sends a heartbeat, which the listener holds."""
        owned = self.joined.assignment.topic_partitions
        assert self.beat(topic_partitions=owned).error_code == Error.NONE
        self.peer.send(BEAT, 1, **self.fields())

    def rests(self, listener: KafkaListener) -> bool:
        """Whether the member's heartbeat is held. Sends another one if the last one was answered."""
        if held(listener, self.group):
            return True
        if select.select([self.peer.socket], [], [], 0)[0]:
            self.epoch = max(self.epoch, self.told().member_epoch)
            self.peer.send(BEAT, 1, **self.fields())
        return False

    def told(self) -> Any:
        """Waits for the answer to the held heartbeat, and returns it."""
        return self.peer.answer(BEAT, 1)[1]


def held(listener: KafkaListener, group: str) -> bool:
    return any(one.held_ms is not None for one in listener.managed.presences() if one.group == group)


def test_a_regular_expression_may_match_nothing_or_everything(peer: Peer, group: str, topic: str) -> None:
    member = Member(peer, group, subscribed_topic_names=(), subscribed_topic_regex="no-such-topic.*")
    assert member.joined.assignment.topic_partitions == ()
    whole = {"topic_partitions": (), "subscribed_topic_names": ()}

    def partitions(regex: str) -> list[int]:
        found = member.beat(**whole, subscribed_topic_regex=regex)
        assert found.error_code == Error.NONE
        return sorted(len(one.partitions) for one in found.assignment.topic_partitions)

    eventually(lambda: partitions(".*")[:1] != [], within_s=20)
    assert PARTITIONS in partitions(".*")
    member.beat(member_epoch=LEAVE)


@pytest.mark.parametrize("regex", ["(", "(a)\\1", "(((a{1,100}){1,100}){1,100}){1,100}", "x" * 40_000])
def test_a_regular_expression_that_re2_does_not_support_is_refused(peer: Peer, group: str, regex: str) -> None:
    member = Member(peer, group, subscribed_topic_names=(), subscribed_topic_regex=regex)
    assert member.joined.error_code in {Error.INVALID_REGULAR_EXPRESSION, Error.INVALID_REQUEST}
    assert member.joined.error_message


def test_unknown_topic_ids_in_a_heartbeat_have_no_effect(peer: Peer, group: str, topic: str) -> None:
    member = Member(peer, group, subscribed_topic_names=(topic,))
    (given,) = member.joined.assignment.topic_partitions
    unknown = message(f"{BEAT}Request").struct("TopicPartitions")(topic_id=uuid.uuid4().bytes, partitions=(0, 99))
    whole = {"subscribed_topic_names": (topic,)}
    answer = member.beat(topic_partitions=(given, unknown), **whole)
    assert (answer.error_code, answer.assignment.topic_partitions) == (Error.NONE, (given,))
    member.beat(member_epoch=LEAVE)


def test_a_recreated_topic_is_read_from_its_beginning(front: Front, topic: str, group: str) -> None:
    name = f"anew-{next(_numbers)}"
    admin = TopicAdmin(front.cluster.bootstrap_servers)
    settings = {
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
        "topic.metadata.refresh.interval.ms": 500,
    }
    consumer = Consumer({"bootstrap.servers": front.bootstrap, "group.id": group} | settings)
    consumer.subscribe([name])
    found: list[str] = []

    def reads(wanted: str) -> bool:
        found.extend(m.value().decode() for m in consumer.consume(100, 0.1) if not m.error())
        return found.count(wanted) == 10

    def fill(value: str) -> None:
        admin.create(name, 2, replication=3)
        producer = Producer({"bootstrap.servers": front.bootstrap})
        for _ in range(10):
            producer.produce(name, value)
        assert producer.flush(60) == 0

    try:
        fill("first")
        eventually(lambda: reads("first"), within_s=40)
        consumer.commit(asynchronous=False)
        admin.delete(name)
        eventually(lambda: not front.store.exists(layout.broker_topic(name)), within_s=30)
        fill("second")
        eventually(lambda: reads("second"), within_s=60)
    finally:
        consumer.close()
    assert found.count("first") == 10


def test_a_request_of_an_unsupported_version_ends_only_its_own_connection(
    listener: KafkaListener, peer: Peer, group: str, topic: str
) -> None:
    member = Member(peer, group, subscribed_topic_names=(topic,))
    with Peer(listener) as newer:
        header = (68).to_bytes(2, "big") + (99).to_bytes(2, "big") + (1).to_bytes(4, "big") + b"\xff\xff\x00"
        newer.socket.sendall(len(header).to_bytes(4, "big") + header)
        assert newer.is_closed()
    assert member.beat().error_code == Error.NONE
    member.beat(member_epoch=LEAVE)


@pytest.fixture
def resting(listener: KafkaListener, peer: Peer, group: str, topic: str) -> Member:
    member = Member(peer, group, subscribed_topic_names=(topic,))
    member.rest()
    eventually(lambda: member.rests(listener))
    return member


def test_the_metrics_count_members_requests(listener: KafkaListener, resting: Member, group: str) -> None:
    members = {"protocol": "consumer"}
    found = values(listener)
    assert found["kafka_coord_kafka_held_requests", frozenset()] >= 1
    assert found["kafka_coord_kafka_managed_members", frozenset(members.items())] >= 1
    with Peer(listener) as other:
        wrong = {"group_id": group, "member_id": "m", "member_epoch": resting.epoch + 9}
        assert other.ask(BEAT, 1, **wrong).error_code == Error.FENCED_MEMBER_EPOCH
        assert other.ask("ConsumerGroupDescribe", 0, group_ids=(group,)).groups[0].error_code == Error.NONE
    failed = {"request": BEAT, "error": "FENCED_MEMBER_EPOCH"}
    assert growth(listener, found, "kafka_coord_kafka_errors_total", **failed) == 1
    for name in BEAT, "ConsumerGroupDescribe":
        eventually(lambda name=name: growth(listener, found, f"{REQUESTS}_count", request=name) >= 1)  # type: ignore[misc]
    resting.told()
    resting.beat(member_epoch=LEAVE)


@pytest.mark.parametrize("every_s", [0.4, 1.0])
def test_a_client_that_commits_often_sends_at_most_a_heartbeat_for_each_commit_and_each_second(
    front: Front, listener: KafkaListener, topic: str, group: str, every_s: float
) -> None:
    """librdkafka 2.8 sends a heartbeat after each commit, regardless of the interval that it was told. If commits are
    irregular, a hold may also end before the next commit."""
    settings = {"group.protocol": "consumer", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": front.bootstrap, "group.id": group} | settings)
    consumer.subscribe([topic])
    at = itertools.count(1)

    def commits(seconds: float) -> int:
        until, count = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            consumer.commit(offsets=[TopicPartition(topic, 0, next(at))], asynchronous=False)
            consumer.poll(every_s)
            count += 1
        return count

    try:
        eventually(lambda: consumer.poll(0.05) or len(consumer.assignment()) == PARTITIONS, within_s=30)
        consumer.pause(consumer.assignment())
        commits(3)
        before, began = values(listener), time.monotonic()
        made = commits(10)
        found = growth(listener, before, f"{REQUESTS}_count", request=BEAT)
        took_s = time.monotonic() - began
    finally:
        consumer.close()
    assert 4 <= found <= made + took_s + 2


def test_no_heartbeat_is_held_for_a_lost_connection(listener: KafkaListener, resting: Member, group: str) -> None:
    resting.peer.socket.close()
    eventually(lambda: not held(listener, group))
    with Peer(listener) as again:
        resting.peer = again
        assert resting.beat().error_code == Error.NONE, "the client must still be a member"
        resting.beat(member_epoch=LEAVE)


def test_a_held_heartbeat_is_answered_when_its_group_moves(front: Front, resting: Member, group: str) -> None:
    front.move(group)
    assert resting.told().error_code in {Error.NOT_COORDINATOR, Error.NONE}
    with Peer(front.serving(group)) as there:
        resting.peer = there
        eventually(lambda: resting.beat().error_code == Error.NONE, within_s=20)
        resting.beat(member_epoch=LEAVE)


def test_a_held_heartbeat_is_answered_when_its_group_is_deleted(
    front: Front, listener: KafkaListener, resting: Member, group: str
) -> None:
    with Peer(listener) as tool:
        assert tool.ask("DeleteGroups", 1, groups_names=(group,)).results[0].error_code == Error.NON_EMPTY_GROUP
        front.store.delete(layout.registration(group, "m"))  # as an operator would, by hand
        while (found := resting.told()).error_code == Error.NONE:  # the hold reached its limit just before
            resting.peer.send(BEAT, 1, **resting.fields())
        assert found.error_code == Error.UNKNOWN_MEMBER_ID

        def deleted() -> bool:
            return bool(tool.ask("DeleteGroups", 1, groups_names=(group,)).results[0].error_code == Error.NONE)

        eventually(deleted, within_s=20)
    assert not front.store.exists(layout.group(group))
