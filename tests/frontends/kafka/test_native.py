"""Tests of native groups, which the brokers coordinate, and of the recorded kinds of groups."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kafka_coord import Consumer as CoordConsumer
from kafka_coord.classic_groups.errors import Error
from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.errors import NoNode
from kafka_coord.frontends.kafka.listener import KafkaListener
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.model import GroupKind
from kafka_coord.zk import layout
from kafka_coord.zk.kinds import forget_kind
from tests.chaos.clients.log_settings import set_of_log
from tests.cli.running import Run
from tests.frontends.kafka.conftest import ELECTED, Front, end_term
from tests.frontends.kafka.peer import Peer
from tests.frontends.kafka.records import (
    PARTITIONS,
    RECORDS,
    consumed,
    filled,
    flowing,
    kind,
    managed_group,
    member,
    members,
    never_lost,
    read,
    working,
)
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
_numbers = itertools.count(1)
HALF = RECORDS // 2


@pytest.fixture(scope="module")
def topic(front: Front, service: object) -> str:
    del service
    return filled(front)


@pytest.fixture
def group() -> str:
    return f"native-{next(_numbers)}"


@pytest.fixture(scope="module")
def left(front: Front, topic: str) -> Iterator[None]:
    """The instances leave new groups whose names begin with ``native-new`` to the brokers."""
    del topic

    def restart(new_groups: str | None) -> None:
        for broker_id in sorted(front.listeners):
            front.stop(broker_id)
            front.start(broker_id, new_groups=new_groups)
        eventually(front.serves_every_group, within_s=60)

    restart("native:native-new.*")
    yield
    restart(None)


def test_a_group_of_the_brokers_stays_theirs_when_its_clients_are_pointed_at_the_instances(
    front: Front, topic: str, group: str
) -> None:
    first = consumed(front.brokers, group, topic, HALF)
    before = member(front.brokers, group, topic, **{"client.id": "before"})
    after = member(front.bootstrap, group, topic, **{"client.id": "after"})
    try:
        rest = read([before, after], RECORDS - len(first))
        assert sorted(first + rest) == list(range(RECORDS))
        eventually(lambda: read([before, after], 1, 0.2) or len(after.assignment()) == PARTITIONS // 2)
        assert kind(front, group) is GroupKind.NATIVE
        assert members(front.brokers, group) == members(front.bootstrap, group) == ["after", "before"]
        own = [TopicPartition(topic, one.partition, 7) for one in after.assignment()]
        after.commit(offsets=own, asynchronous=False)
        assert {one.offset for one in after.committed(own)} == {one.offset for one in before.committed(own)} == {7}
    finally:
        before.close()
        after.close()


def test_a_new_group_is_coordinated_unless_its_name_is_left_to_the_brokers(
    front: Front, left: None, topic: str, group: str
) -> None:
    consumed(front.bootstrap, group, topic, RECORDS)
    assert kind(front, group) is GroupKind.CLIENT_ASSIGNED
    other = group.replace("native-", "native-new-")
    consumed(front.bootstrap, other, topic, RECORDS)
    assert kind(front, other) is GroupKind.NATIVE
    admin = AdminClient({"bootstrap.servers": front.brokers})
    known = {one.group_id for one in admin.list_consumer_groups().result(30).valid}
    assert other in known
    assert group not in known


def test_groups_that_exist_before_kinds_are_recorded_are_recorded_as_what_they_are(
    front: Front, topic: str, group: str
) -> None:
    """Each store, none, and both: a group with members in the log stays client-assigned."""
    in_log, in_both, managed = group, f"{group}-both", f"{group}-managed"
    consumed(front.bootstrap, in_log, topic, RECORDS)
    here = member(front.bootstrap, in_both, topic)
    read([here], RECORDS)
    with CoordConsumer(zookeeper=front.cluster.zookeeper, group=managed, topics=[topic]) as own:
        eventually(lambda: own.poll(0.05) or len(own.assignment()) == PARTITIONS, within_s=30)
    front.store.ensure_path(layout.group(in_both))
    eventually(lambda: in_both in front.serving(in_both).managed.groups)
    for one in (in_log, in_both, managed):  # at once: a heartbeat would record the group as managed
        forget_kind(front.store, one)
        end_term(front, partition_of(one))
    eventually(lambda: kind(front, managed) is GroupKind.MANAGED)
    eventually(lambda: kind(front, in_log) is GroupKind.CLIENT_ASSIGNED)
    eventually(lambda: kind(front, in_both) is GroupKind.CLIENT_ASSIGNED)
    assert kind(front, f"{group}-none") is None
    with suppress(NoNode):
        front.store.delete(layout.group(in_both))
    here.close()


def test_a_consumer_of_this_project_waits_while_its_group_is_recorded_as_another_kind(
    front: Front, topic: str, group: str, coord: Run
) -> None:
    first = consumed(front.bootstrap, group, topic, HALF)
    settings = {"zookeeper": front.cluster.zookeeper, "group": group, "topics": [topic]}
    with CoordConsumer(**settings, auto_offset_reset="earliest") as own:
        assert own.poll(3.0) is None
        assert not own.assignment()
        assert coord("groups", "convert", group, "--to", "managed", "--execute").code == 0
        rest: list[object] = []
        eventually(lambda: rest.extend(own.consume(500, 0.2)) or len(rest) >= RECORDS - len(first), within_s=60)
        assert len(rest) == RECORDS - len(first), "it did not go on where the others stopped"


def test_the_record_of_a_kind_goes_only_with_the_group(front: Front, topic: str, group: str) -> None:
    consumed(front.bootstrap, group, topic, RECORDS)
    assert kind(front, group) is GroupKind.CLIENT_ASSIGNED
    admin = AdminClient({"bootstrap.servers": front.bootstrap})
    admin.delete_consumer_groups([group])[group].result(30)
    assert kind(front, group) is None
    native = f"{group}-native"
    consumed(front.brokers, native, topic, RECORDS)
    consumed(front.bootstrap, native, topic, 0)
    assert kind(front, native) is GroupKind.NATIVE
    admin.delete_consumer_groups([native])[native].result(30)
    assert kind(front, native) is None


def test_no_record_outlives_a_group_that_others_removed(front: Front, topic: str, group: str, coord: Run) -> None:
    """A tool at the brokers, the retention of offsets, and an operator. What gets the name next is a new group."""
    names = native, expired, managed, kept = [f"{group}-{one}" for one in ("native", "expired", "managed", "kept")]
    for name in (native, kept):
        consumed(front.brokers, name, topic, 10)
        consumed(front.bootstrap, name, topic, 0)
    consumed(front.bootstrap, expired, topic, 10)
    managed_group(front, topic, managed)
    consumed(front.bootstrap, managed, topic, 0)
    assert [str(kind(front, name)) for name in names] == ["native", "client-assigned", "managed", "native"]
    admin = AdminClient({"bootstrap.servers": front.brokers})
    admin.delete_consumer_groups([native])[native].result(30)
    assert coord("groups", "delete", managed, "--yes").code == 0
    serving = front.serving(expired)
    _now(serving, serving.manager.delete_group(expired))  # as the check of expired offsets does
    settings = {"zookeeper": front.cluster.zookeeper, "group": native, "topics": [topic]}
    with CoordConsumer(**settings, auto_offset_reset="earliest") as own:
        assert own.poll(1.0) is None, "it is not told apart yet from a group that begins"
        for listener in [*front.listeners.values()] * 2:
            _now(listener, listener.coordinator.groups.forget_gone())
        assert [kind(front, name) for name in names] == [None, None, None, GroupKind.NATIVE]
        eventually(lambda: own.poll(0.2), within_s=60)
    consumed(front.bootstrap, managed, topic, 0)
    assert kind(front, managed) is GroupKind.CLIENT_ASSIGNED


def _now(listener: KafkaListener, work: Coroutine[Any, Any, object]) -> None:
    """Does work of the listener, which it does every ten minutes otherwise."""
    assert listener._loop is not None
    asyncio.run_coroutine_threadsafe(work, listener._loop).result(60)


def test_tools_see_native_groups_among_the_others(front: Front, topic: str, group: str) -> None:
    consumed(front.brokers, group, topic, HALF)
    other = f"{group}-other"
    consumed(front.bootstrap, other, topic, HALF)
    admin = AdminClient({"bootstrap.servers": front.bootstrap})
    listed = {one.group_id: one.state for one in admin.list_consumer_groups().result(30).valid}
    assert listed[group] == listed[other] == ConsumerGroupState.EMPTY
    consumed(front.bootstrap, group, topic, 0)  # it is recorded from here on
    with Peer(front.serving(other)) as peer:
        found = peer.ask("DescribeGroups", 5, groups=[group, other]).groups
    assert {one.group_id for one in found} == {group, other}
    assert all(one.error_code in {Error.NONE, Error.NOT_COORDINATOR} for one in found)


def test_offsets_are_committed_in_transactions_of_native_groups(front: Front, topic: str, group: str) -> None:
    consumed(front.brokers, group, topic, 0)
    one = member(front.bootstrap, group, topic)
    producer = Producer({"bootstrap.servers": front.bootstrap, "transactional.id": group})
    try:
        eventually(lambda: one.poll(0.05) or len(one.assignment()) == PARTITIONS)
        producer.init_transactions(30)
        producer.begin_transaction()
        wanted = [TopicPartition(topic, number, 7 + number) for number in range(PARTITIONS)]
        producer.send_offsets_to_transaction(wanted, one.consumer_group_metadata(), 30)
        producer.commit_transaction(30)
        assert [at.offset for at in one.committed(wanted)] == [at.offset for at in wanted]
    finally:
        one.close()


def test_operators_see_native_groups_as_what_they_are(front: Front, topic: str, group: str, coord: Run) -> None:
    consumed(front.brokers, group, topic, HALF)

    def row() -> Any:
        (row,) = (row for row in coord("groups", "list", "-o", "json").json() if row["group"] == group)
        return row

    unmet = {f"{group}-{number}" for number in range(9)}
    for name in unmet:
        tool = Consumer({"bootstrap.servers": front.brokers, "group.id": name})
        tool.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        tool.close()
    listed = coord("groups", "list", "--lag", "-o", "json")
    rows = {one["group"]: one for one in listed.json() if one["group"] in unmet}
    assert {one["kind"] for one in rows.values()} == {"native"}, "before any client has asked an instance about them"
    assert (rows.keys(), listed.err) == (unmet, "")
    assert all(one["lag"] is not None for one in rows.values())
    assert (row()["kind"], row()["state"]) == ("native", "Empty")
    one = member(front.bootstrap, group, topic, **{"client.id": "seen"})
    try:
        eventually(lambda: one.poll(0.05) or len(one.assignment()) == PARTITIONS)
        found = coord("groups", "describe", group, "-o", "json").json()
        assert (found["kind"], found["state"]) == ("native", "Stable")
        assert [member["client"] for member in found["members"]] == ["seen"]
        assert any(offset["committed_offset"] for offset in found["offsets"])
        assert (row()["kind"], row()["members"], row()["log_partition"]) == ("native", 1, None)
        for verb in ("pause", "resume", "rebalance", "settings"):
            refused = coord("groups", verb, group)
            assert (refused.code, "because the brokers coordinate it" in refused.err) == (6, True), (verb, refused.err)
            assert f"kafka-coord groups take-over {group} --managed" in refused.err
        assert "the brokers coordinate it" in coord("groups", "pause", group, "--dry-run").err
    finally:
        one.close()


def test_a_damaged_znode_of_kinds_is_named_stops_no_group_and_is_written_again_once_it_is_deleted(
    front: Front, topic: str, group: str, coord: Run
) -> None:
    consumed(front.brokers, group, topic, RECORDS)
    partition, ours = partition_of(group), f"{group}-ours"
    while partition_of(ours) != partition:
        ours += "-"
    consumed(front.bootstrap, ours, topic, RECORDS)
    assert consumed(front.bootstrap, group, topic, 0) == []
    recorded = {group: GroupKind.NATIVE, ours: GroupKind.CLIENT_ASSIGNED}
    assert {one: kind(front, one) for one in recorded} == recorded
    path = layout.kinds(partition)
    front.store.set(path, b"\xff garbage")
    for name in recorded:  # as known before
        assert consumed(front.bootstrap, name, topic, 0) == []
    assert path in coord("doctor", "-o", "json").out
    assert {ours, group} <= {one["group"] for one in json.loads(coord("groups", "list", "-o", "json").out)}
    end_term(front, partition)
    front.store.delete(path)
    eventually(lambda: {one: kind(front, one) for one in recorded} == recorded, within_s=30)
    for name in recorded:
        assert consumed(front.bootstrap, name, topic, 0) == []


@contextmanager
def _log_refuses_writes(front: Front, group: str) -> Iterator[None]:
    """Nobody coordinates the group's partition of the groups log, because it accepts no record."""
    manager, partition = front.serving(group).manager, partition_of(group)
    eventually(lambda: set_of_log(front.brokers, {"max.message.bytes": "1"}))
    try:
        given_up = time.monotonic()

        def is_away() -> bool:  # the brokers apply the setting one after the other
            nonlocal given_up
            if partition in manager.terms:
                front.serving(group)._call(manager.resign, partition, "a test wants it")
                given_up = time.monotonic()
            return time.monotonic() > given_up + 2.0

        eventually(is_away, within_s=30)
        yield
        assert partition not in manager.terms
    finally:
        eventually(lambda: set_of_log(front.brokers, {"max.message.bytes": "1048588"}), within_s=30)
        eventually(lambda: partition in manager.terms, within_s=30)


@contextmanager
def _paused(server: ZooKeeperServer) -> Iterator[None]:
    server.process.pause()
    try:
        yield
    finally:
        server.process.resume()


@contextmanager
def _stopped(service: CoordinatorService, front: Front) -> Iterator[None]:
    service.stop()
    front.publish(ELECTED)  # its instance serves clients as before
    assert not service.leads
    yield


# the last one, because it stops the elected coordinator
def test_a_native_group_goes_on_while_the_groups_log_zookeeper_and_the_coordinator_are_away(
    front: Front, service: CoordinatorService, topic: str, group: str
) -> None:
    if front.ensemble is None:
        pytest.skip("other tests use this ZooKeeper")
    consumed(front.brokers, group, topic, 10)
    with flowing(front, topic), working(front.bootstrap, group, topic, 2) as workers:
        eventually(lambda: kind(front, group) is GroupKind.NATIVE)
        for away in (_log_refuses_writes(front, group), _paused(front.ensemble), _stopped(service, front)):
            with away:
                known = [dict(one.committed) for one in workers]
                newcomer = member(front.bootstrap, group, topic)
                try:
                    assert read([newcomer], 1), "a newcomer gets partitions"
                    newcomer.commit(asynchronous=False)
                finally:
                    newcomer.close()
                eventually(lambda: sum(len(one.consumer.assignment()) for one in workers) == PARTITIONS, within_s=30)
                eventually(
                    lambda known=known: all(one.committed != then for one, then in zip(workers, known, strict=True)),  # type: ignore[misc]
                    within_s=30,
                )
        never_lost(workers, front.brokers, group, topic)
