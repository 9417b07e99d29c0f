"""Tests of stock clients with ``group.protocol=consumer`` in managed groups, on brokers that do not support it."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupType,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from msgspec import to_builtins

from kafka_coord import Consumer as CoordConsumer
from kafka_coord.classic_groups.errors import Error
from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.groups.instances import read_presences
from kafka_coord.groups.managed import describe_group
from kafka_coord.model.histories import Trail
from kafka_coord.monitor.audit import audit
from kafka_coord.monitor.metrics import MetricsServer
from kafka_coord.wire.consumer_protocol import subscribed_topics
from kafka_coord.wire.messages import message
from kafka_coord.zk import layout
from kafka_coord.zk.instance import InstanceRegistration
from tests.frontends.kafka.conftest import ELECTED, Front
from tests.frontends.kafka.java import KafkaTools, rows_of_four, table
from tests.frontends.kafka.peer import Peer, join
from tests.frontends.kafka.records import PARTITIONS, RECORDS, filled, read
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def topic(front: Front, service: CoordinatorService) -> str:
    """Creates a topic with records, and returns its name."""
    return filled(front)


@pytest.fixture
def consumer(front: Front, topic: str) -> Iterator[Callable[..., Consumer]]:
    made: list[Consumer] = []

    def make(group: str, **settings: Any) -> Consumer:
        given = {"bootstrap.servers": front.bootstrap, "group.id": group, "group.protocol": "consumer"}
        given |= {"auto.offset.reset": "earliest"}
        made.append(Consumer(given | {name.replace("_", "."): value for name, value in settings.items()}))
        made[-1].subscribe([topic])
        return made[-1]

    yield make
    for one in made:
        one.close()


def shared(*consumers: Consumer, count: int = 0) -> bool:
    """Whether each consumer has its share of the partitions. The group has ``count`` members, by default these."""
    for one in consumers:
        one.poll(0.05)
    share = PARTITIONS // (count or len(consumers))
    return all(len(one.assignment()) == share for one in consumers)


def classic_join(front: Front, group: str) -> Error:
    """Joins with the classic protocol, and returns the error."""
    coordinator = front.serving(group)
    with Peer(coordinator) as peer:
        return Error(peer.ask("JoinGroup", 3, **join(group)).error_code)


def test_a_group_consumes_everything_once_through_joins_and_leaves(consumer: Callable[..., Consumer]) -> None:
    group = f"managed-{next(_numbers)}"
    first, second = consumer(group), consumer(group)
    assert sorted(read([first, second], RECORDS)) == list(range(RECORDS))
    eventually(lambda: shared(first, second), within_s=30)
    first.close()
    eventually(lambda: shared(second), within_s=30)


def test_stock_clients_share_a_group_with_consumers_over_zookeeper(
    front: Front, topic: str, consumer: Callable[..., Consumer]
) -> None:
    group = f"managed-{next(_numbers)}"
    with CoordConsumer(
        zookeeper=front.cluster.zookeeper, group=group, topics=[topic], auto_offset_reset="earliest"
    ) as own:
        first, second = consumer(group), consumer(group)

        def share(*stock: Consumer) -> bool:
            own.poll(0.05)
            return shared(*stock, count=len(stock) + 1) and len(own.assignment()) == PARTITIONS // (len(stock) + 1)

        eventually(lambda: share(first, second), within_s=30)
        first.close()
        eventually(lambda: share(second), within_s=30)


def test_members_and_their_commits_outlive_the_coordinator(
    front: Front, topic: str, consumer: Callable[..., Consumer]
) -> None:
    group = f"managed-{next(_numbers)}"
    one = consumer(group, enable_auto_commit=False)
    assert len(read([one], RECORDS)) == RECORDS
    one.commit(asynchronous=False)
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    before = [found.offset for found in one.committed(partitions, 30)]
    assert sum(before) == RECORDS

    front.move(group)

    def commits_again() -> bool:
        one.poll(0.05)
        try:
            return [found.offset for found in one.committed(partitions, 10)] == before
        except KafkaException:
            return False

    eventually(commits_again, within_s=30)
    assert len(one.assignment()) == PARTITIONS, "the member must not lose partitions"
    other = consumer(group)
    eventually(lambda: shared(one, other), within_s=30)  # now both know the new coordinator
    one.close()
    eventually(lambda: shared(other), within_s=30)
    assert [found.offset for found in other.committed(partitions, 30)] == before


def test_metadata_and_leader_epochs_of_committed_offsets_are_kept(
    front: Front, topic: str, consumer: Callable[..., Consumer]
) -> None:
    group = f"managed-{next(_numbers)}"
    one = consumer(group, enable_auto_commit=False)
    eventually(lambda: shared(one), within_s=30)

    def said(reader: Consumer) -> list[tuple[int, int | None, str | None]]:
        found = reader.committed([TopicPartition(topic, number) for number in range(3)], 30)
        return [(tp.offset, tp.leader_epoch, tp.metadata or None) for tp in found]

    def commit(where: int, offset: int, **more: Any) -> None:
        one.commit(offsets=[TopicPartition(topic, where, offset, **more)], asynchronous=False)

    commit(0, 1, metadata="gate A", leader_epoch=0)
    commit(1, 2, leader_epoch=0)
    commit(2, 3, metadata="ß" * 2048)
    expected = [(1, 0, "gate A"), (2, 0, None), (3, None, "ß" * 2048)]
    assert said(one) == expected
    with pytest.raises(KafkaException, match="OFFSET_METADATA_TOO_LARGE"):
        commit(2, 4, metadata="x" * 4097)
    assert front.store.get(layout.offset(group, topic, 0)).data == b"1"
    one.close()
    front.move(group)

    other = consumer(group, enable_auto_commit=False)
    eventually(lambda: shared(other), within_s=30)
    assert said(other) == expected, "the details must outlive the member and the coordinator"
    other.close()
    with CoordConsumer(zookeeper=front.cluster.zookeeper, group=group, topics=[topic]) as own:
        eventually(lambda: any(record.partition == 0 for record in own.consume(500, 0.05)), within_s=30)
        own.commit()
    last = consumer(group, enable_auto_commit=False)
    eventually(lambda: shared(last), within_s=30)
    offset, *details = said(last)[0]
    assert (offset > 1, details) == (True, [None, None]), "this project's consumer commits without details"
    last.close()

    simple = consumer(group, group_protocol="classic", enable_auto_commit=False)
    simple.unsubscribe()
    simple.assign([TopicPartition(topic, 0)])
    simple.commit(offsets=[TopicPartition(topic, 0, 5, metadata="by hand")], asynchronous=False)
    assert said(simple)[0] == (5, None, "by hand")


def test_committed_offsets_are_always_stable_because_transactional_commits_are_refused(
    front: Front, topic: str, gates: str, consumer: Callable[..., Consumer]
) -> None:
    group = f"managed-{next(_numbers)}"
    at = TopicPartition(topic, 0, 7)
    # such a consumer asks for stable offsets
    one = consumer(group, enable_auto_commit=False, isolation_level="read_committed")
    eventually(lambda: shared(one), within_s=30)
    one.commit(offsets=[at], asynchronous=False)
    producer = Producer({"bootstrap.servers": front.bootstrap, "transactional.id": group})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(gates, value="0")
    later = [TopicPartition(topic, 0, 8)]
    with pytest.raises(KafkaException, match="UNSUPPORTED"):
        producer.send_offsets_to_transaction(later, one.consumer_group_metadata(), 60)
    producer.abort_transaction(60)
    with Peer(front.serving(group)) as peer:
        form = message("TxnOffsetCommitRequest")
        part = form.struct("TxnOffsetCommitRequestPartition")(partition_index=0, committed_offset=8)
        named = form.struct("TxnOffsetCommitRequestTopic")(name=topic, partitions=(part,))
        told = peer.ask("TxnOffsetCommit", 3, transactional_id=group, group_id=group, producer_id=1, topics=(named,))
    assert [part.error_code for of in told.topics for part in of.partitions] == [Error.UNSUPPORTED_VERSION]
    assert [found.offset for found in one.committed([TopicPartition(topic, 0)], 30)] == [7]


def test_a_group_without_members_stays_managed_when_it_moves(front: Front, topic: str) -> None:
    group = f"managed-{next(_numbers)}"
    with CoordConsumer(zookeeper=front.cluster.zookeeper, group=group, topics=[topic]) as own:
        eventually(lambda: own.poll(0.05) or len(own.assignment()) == PARTITIONS, within_s=30)
    assert classic_join(front, group) is Error.INCONSISTENT_GROUP_PROTOCOL
    front.move(group)
    assert classic_join(front, group) is Error.INCONSISTENT_GROUP_PROTOCOL


def test_an_empty_client_assigned_group_becomes_managed_with_its_offsets(
    front: Front, topic: str, consumer: Callable[..., Consumer]
) -> None:
    group = f"managed-{next(_numbers)}"
    classic = consumer(group, group_protocol="classic", enable_auto_commit=False)
    eventually(lambda: shared(classic), within_s=30)
    stored = [TopicPartition(topic, number, number + 1, metadata=f"gate {number}") for number in range(PARTITIONS)]
    classic.commit(offsets=stored, asynchronous=False)
    with Peer(front.serving(group)) as peer:
        beat = {
            "group_id": group,
            "member_id": "m",
            "member_epoch": 0,
            "topic_partitions": (),
            "rebalance_timeout_ms": 1,
        }
        refused = peer.ask("ConsumerGroupHeartbeat", 0, **beat, subscribed_topic_names=(topic,))
        assert refused.error_code == Error.GROUP_ID_NOT_FOUND, "the group still has members"
    classic.close()
    other = consumer(group, enable_auto_commit=False)
    eventually(lambda: shared(other), within_s=30)
    found = other.committed([TopicPartition(topic, number) for number in range(PARTITIONS)], 30)
    assert [(one.offset, one.metadata) for one in found] == [(one.offset, one.metadata) for one in stored]
    assert classic_join(front, group) is Error.INCONSISTENT_GROUP_PROTOCOL


def test_kafkas_tools_and_admin_clients_see_and_change_a_managed_group(
    front: Front, topic: str, consumer: Callable[..., Consumer], tools: KafkaTools
) -> None:
    group = f"managed-{next(_numbers)}"
    one = consumer(group, client_id="stock", enable_auto_commit=False)
    with CoordConsumer(zookeeper=front.cluster.zookeeper, group=group, topics=[topic], consumer_id="own") as own:
        eventually(lambda: own.poll(0.05) or shared(one, count=2), within_s=30)
        one.commit(offsets=[TopicPartition(topic, one.assignment()[0].partition, 1)], asynchronous=False)
        at = ("--bootstrap-server", front.bootstrap, "--timeout", "60000", "--group", group)
        members = table(tools("kafka-consumer-groups.sh", *at, "--describe", "--members", "--verbose"))
        state = tools("kafka-consumer-groups.sh", *at, "--describe", "--state")
        admin = AdminClient({"bootstrap.servers": front.bootstrap})
        seen = admin.describe_consumer_groups([group])[group].result(30)
        rows = {row.group_id: row for row in admin.list_consumer_groups().result(30).valid}
        with Peer(front.serving(group)) as peer:
            (as_classic,) = peer.ask("DescribeGroups", 4, groups=(group,)).groups
    assert {subscribed_topics([member.member_metadata]) for member in as_classic.members} == {frozenset({topic})}
    assert {row["CLIENT-ID"]: row["#PARTITIONS"] for row in members}["stock"] == str(PARTITIONS // 2)
    assert "own" in {row["CONSUMER-ID"] for row in members}
    assert "Stable" in state
    assert (rows[group].state, rows[group].type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
    held = {tp.partition for member in seen.members for tp in member.assignment.topic_partitions}
    assert (len(seen.members), held) == (2, set(range(PARTITIONS)))

    one.close()
    printed = tools(
        "kafka-consumer-groups.sh", *at, "--reset-offsets", "--to-offset", "2", "--topic", topic, "--execute"
    )
    _, _, partitions, offsets = rows_of_four(printed)
    assert (len(partitions), set(offsets)) == (PARTITIONS, {"2"})
    done = Trail.from_json(json.loads(front.store.get(layout.history(group)).data), "here").actions[-1]
    assert re.fullmatch(r"User:ANONYMOUS \(client id \S+, 127\.0\.0\.1:\d+\)", done.by)
    assert re.fullmatch(rf"{topic} (\d: (-|\d+) → 2(, )?)+", done.change)
    other = consumer(group, enable_auto_commit=False)
    eventually(lambda: shared(other), within_s=30)
    assert {found.offset for found in other.committed(other.assignment(), 30)} == {2}
    with pytest.raises(AssertionError, match="not empty"):
        tools("kafka-consumer-groups.sh", *at, "--delete")
    other.close()
    tools("kafka-consumer-groups.sh", *at, "--delete")
    assert not front.store.exists(layout.group(group))


def test_offsets_of_topics_that_nobody_subscribes_to_can_be_deleted(
    front: Front, topic: str, gates: str, consumer: Callable[..., Consumer], tools: KafkaTools
) -> None:
    group = f"managed-{next(_numbers)}"
    stored = [TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 4), TopicPartition(gates, 0, 0)]
    by_hand = consumer(group, group_protocol="classic", enable_auto_commit=False)
    by_hand.unsubscribe()
    by_hand.commit(offsets=stored, asynchronous=False)
    one = consumer(group, enable_auto_commit=False)
    eventually(lambda: shared(one), within_s=30)
    delete = ("kafka-consumer-groups.sh", "--bootstrap-server", front.bootstrap, "--group", group, "--delete-offsets")
    with pytest.raises(AssertionError, match="subscribed to it"):
        tools(*delete, "--topic", topic, "--topic", gates)

    def offsets() -> list[int]:
        return [found.offset for found in one.committed([TopicPartition(tp.topic, tp.partition) for tp in stored], 30)]

    assert offsets() == [3, 4, OFFSET_INVALID], "the other topic's offset must be deleted"
    one.close()
    tools(*delete, "--topic", f"{topic}:0")
    one = consumer(group, enable_auto_commit=False)
    eventually(lambda: shared(one), within_s=30)
    assert offsets() == [OFFSET_INVALID, 4, OFFSET_INVALID]


def test_a_static_member_that_returns_gets_its_partitions_back(consumer: Callable[..., Consumer]) -> None:
    group = f"managed-{next(_numbers)}"
    one, other = (consumer(group, group_instance_id=f"rack/{number}") for number in (1, 2))
    eventually(lambda: shared(one, other), within_s=30)
    before, moved = one.assignment(), other.assignment()
    one.close()
    back = consumer(group, group_instance_id="rack/1")
    eventually(lambda: shared(back, other), within_s=30)
    assert sorted(tp.partition for tp in back.assignment()) == sorted(tp.partition for tp in before)
    assert sorted(tp.partition for tp in other.assignment()) == sorted(tp.partition for tp in moved)


def test_operators_see_the_addresses_software_and_epochs_of_members(
    front: Front, service: CoordinatorService, consumer: Callable[..., Consumer]
) -> None:
    names = (f"managed-{number}" for number in _numbers)
    group = next(name for name in names if front.coordinator(partition_of(name)) != ELECTED)
    one, broker = consumer(group), front.coordinator(partition_of(group))
    server = MetricsServer("127.0.0.1:0", service, front.store, None, front.listeners[broker])
    endpoints = {"http": f"127.0.0.1:{server.port}", "kafka": front.listeners[broker].address}
    instance = InstanceRegistration(front.store, broker, endpoints, lambda: None)
    instance.register()
    try:
        eventually(lambda: shared(one), within_s=30)
        member = eventually(
            lambda: next(
                (row for row in describe_group(front.store, group, None, read_presences).members if row.held_ms), None
            )
        )
    finally:
        instance.unregister()
        front.publish(broker)
        server.close()
    assert (member.channel, member.protocol, member.gateway) == ("kafka", "consumer", broker)
    assert (member.software or "").startswith("confluent-kafka-python ")
    assert (member.address or "").startswith("127.0.0.1:")
    assert member.epoch == 1


@pytest.fixture(scope="module")
def gates(front: Front) -> str:
    """Creates another topic, with one partition, and returns its name."""
    TopicAdmin(front.cluster.bootstrap_servers).create("gates", 1, replication=3)
    return "gates"


def test_a_subscription_changes_without_an_interruption(
    front: Front, topic: str, gates: str, consumer: Callable[..., Consumer]
) -> None:
    group = f"managed-{next(_numbers)}"
    one, revoked = consumer(group), []
    eventually(lambda: shared(one), within_s=30)
    one.subscribe([topic, gates], on_revoke=lambda _, partitions: revoked.extend(partitions))
    eventually(lambda: one.poll(0.05) or len(one.assignment()) == PARTITIONS + 1, within_s=30)
    assert revoked == []


def test_a_member_that_keeps_partitions_beyond_its_rebalance_timeout_is_removed(front: Front, topic: str) -> None:
    group = f"managed-{next(_numbers)}"
    coordinator = front.serving(group)
    join = {"topic_partitions": (), "subscribed_topic_names": (topic,), "rebalance_timeout_ms": 1_500}

    def beat(peer: Peer, member_id: str, epoch: int, **fields: Any) -> Any:
        who = {"group_id": group, "member_id": member_id, "member_epoch": epoch}
        return peer.ask("ConsumerGroupHeartbeat", 0, **who, **fields)

    with Peer(coordinator) as slow, Peer(coordinator) as other:
        joined = beat(slow, "slow", 0, **join)
        owned = joined.assignment.topic_partitions
        assert beat(slow, "slow", joined.member_epoch, topic_partitions=owned).error_code == Error.NONE
        began = time.monotonic()
        told = [beat(other, "other", 0, **join)]
        # within less than the group's own timeout of 60 s
        eventually(lambda: beat(slow, "slow", joined.member_epoch).error_code == Error.UNKNOWN_MEMBER_ID, within_s=30)
        assert time.monotonic() - began > 1.4

        def gets_all() -> bool:
            told.append(beat(other, "other", told[-1].member_epoch, **join))
            return [len(one.partitions) for one in told[-1].assignment.topic_partitions] == [PARTITIONS]

        eventually(gets_all, within_s=20)
        beat(other, "other", -1)


def test_a_subscription_may_have_names_and_a_regular_expression(front: Front, topic: str, gates: str) -> None:
    group = f"managed-{next(_numbers)}"
    join = {
        "group_id": group,
        "member_id": "m",
        "member_epoch": 0,
        "topic_partitions": (),
        "rebalance_timeout_ms": 9_000,
    }
    with Peer(front.serving(group)) as peer:

        def ask(**fields: Any) -> Any:
            return peer.ask("ConsumerGroupHeartbeat", 1, **join | fields)

        hostile = ask(subscribed_topic_names=(), subscribed_topic_regex="(a)\\1")
        assert hostile.error_code == Error.INVALID_REGULAR_EXPRESSION
        unknown = ask(subscribed_topic_names=(topic,), server_assignor="fastest")
        assert unknown.error_code == Error.UNSUPPORTED_ASSIGNOR
        joined = ask(subscribed_topic_names=(topic,), subscribed_topic_regex="gat.*", server_assignor="range")
        assert sorted(len(one.partitions) for one in joined.assignment.topic_partitions) == [1, PARTITIONS]
        ask(member_epoch=-1)


def test_the_audit_of_zookeepers_log_finds_no_violations_after_these_tests(front: Front) -> None:
    directory = front.cluster.brokers[0].directory.parent / "zookeeper" / "data"
    found = to_builtins(audit([directory], running=True).document())
    by_hand = "copied-"  # test_copies itself writes offsets, perhaps on this cluster
    assert [one for one in found["violations"] if not one["group"].startswith(by_hand)] == []
    silent = "side-"  # the members of test_side_by_side do not always carry out commands
    warnings = {one["rule"] for one in found["warnings"] if not (one["group"] or "").startswith(silent)}
    assert warnings <= {"seek-back"}, "a test commits an earlier offset on purpose"
