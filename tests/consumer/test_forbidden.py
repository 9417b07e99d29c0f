"""Consumers that the brokers forbid a topic: real brokers with ACLs, a real ZooKeeper and a real coordinator."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kafka_coord import Consumer
from kafka_coord.dev.cluster.kafka import Broker, KafkaSettings
from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from kafka_coord.groups.group import GroupDescription
from kafka_coord.groups.managed import describe_group
from kafka_coord.model import TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.model.operations import GroupSettings
from kafka_coord.spark.member import QueryMember
from kafka_coord.spark.options import SourceOptions
from kafka_coord.zk import connect, layout
from kafka_coord.zk.session import KazooStore
from tests.conftest import _shared_servers, brokers_of_a_run
from tests.consumer.reading import read
from tests.coordinator.harness import seen
from tests.frontends.harness import SocketInstance
from tests.go_consumer import go_consumer, records_of
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
USERS = {"reader": "r-secret", "boss": "b-secret"}
REBALANCE_TIMEOUT_MS = 2_000


@dataclass
class Guarded:
    """A broker with ACLs. Without SASL, a client has all rights, as the instances have here."""

    broker: Broker
    zookeeper: str
    admin: AdminClient

    def topic(self, name: str, *rights: AclOperation, user: str = "reader") -> str:
        TopicAdmin(self.broker.address).create(name)
        self.allow(name, *rights, user=user)
        return name

    def allow(self, topic: str, *rights: AclOperation, user: str = "reader") -> None:
        if rights:
            for done in self.admin.create_acls([binding(topic, one, user) for one in rights]).values():
                done.result(30)

    def forbid(self, topic: str, *rights: AclOperation, user: str = "reader") -> None:
        who = f"User:{user}", "*"
        filters = [
            AclBindingFilter(
                *(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, *who, one, AclPermissionType.ALLOW)
            )
            for one in rights
        ]
        for done in self.admin.delete_acls(filters).values():
            done.result(30)

    def produce(self, topic: str, *values: str) -> None:
        producer = Producer({"bootstrap.servers": self.broker.address})
        for value in values:
            producer.produce(topic, value.encode())
        assert producer.flush(30) == 0


def binding(topic: str, right: AclOperation, user: str) -> AclBinding:
    who = f"User:{user}", "*", right, AclPermissionType.ALLOW
    return AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, *who)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    login = f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
    properties = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,GUARDED:SASL_PLAINTEXT",
        "listener.name.guarded.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.guarded.plain.sasl.jaas.config": login,
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    settings = KafkaSettings(listeners=("GUARDED",), properties=properties)
    with (
        ZooKeeperServer(directory / "zookeeper", settings=ZooKeeperSettings(tick_ms=200)) as server,
        brokers_of_a_run(directory, server.connect_string, 1, settings) as cluster,
    ):
        (broker,) = cluster.brokers
        _shared_servers.append(broker)
        try:
            yield Guarded(broker, server.connect_string, AdminClient({"bootstrap.servers": broker.address}))
        finally:
            _shared_servers.remove(broker)


@pytest.fixture
def store(guarded: Guarded) -> Iterator[KazooStore]:
    opened = connect(guarded.zookeeper)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def elected(guarded: Guarded) -> Iterator[SocketInstance]:
    instance = SocketInstance(guarded.zookeeper, 101, lists=True)
    try:
        yield instance.start_elected()
    finally:
        instance.stop()


Make = Callable[..., Consumer]


def login_of(user: str) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": USERS[user],
        "log_level": 0,
    }


@pytest.fixture
def consumer(guarded: Guarded, store: KazooStore, elected: SocketInstance) -> Iterator[Make]:
    """Makes consumers that log in as ``user``, in groups with a short rebalance timeout."""
    made: list[Consumer] = []

    def make(group: str, *topics: str, user: str = "reader", **more: Any) -> Consumer:
        seen(elected.service, topics)
        store.ensure_path(layout.group(group))
        store.set(layout.group(group), fields.dump(GroupSettings(rebalance_timeout_ms=REBALANCE_TIMEOUT_MS).to_json()))
        given = {
            **({"topics": topics} if topics else {}),
            "auto_offset_reset": "latest",
            "zookeeper": guarded.zookeeper,
            "kafka": login_of(user),
            **more,
        }
        made.append(Consumer(group=group, **given))
        return made[-1]

    yield make
    for one in made:
        one.close()


def told(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and words in record.getMessage()
    ]


def described(store: KazooStore, group: str) -> GroupDescription:
    return describe_group(store, group, None)


def owner(store: KazooStore, group: str, topic: str) -> str | None:
    owners = [one.consumer for one in described(store, group).members if topic in one.owned.topics]
    return owners[0] if owners else None


@pytest.mark.parametrize("channel", ["zookeeper", "socket"])
@pytest.mark.parametrize("rights", [(), (AclOperation.DESCRIBE,)], ids=["may not describe", "may not read"])
def test_a_forbidden_topic_on_latest_neither_ends_the_membership_nor_blocks_another_topic(
    guarded: Guarded,
    store: KazooStore,
    consumer: Make,
    elected: SocketInstance,
    caplog: pytest.LogCaptureFixture,
    rights: tuple[Any, ...],
    channel: str,
) -> None:
    group = f"latest-{channel}-{len(rights)}"
    over = {"zookeeper": None, "bootstrap": elected.server.address} if channel == "socket" else {}
    flights = guarded.topic(f"flights-{group}", AclOperation.READ)
    salaries = guarded.topic(f"salaries-{group}", *rights)
    forbidden = TopicPartition(salaries, 0)
    guarded.produce(flights, "before")
    guarded.produce(salaries, "before")
    changes: list[dict[TopicPartition, str]] = []
    with caplog.at_level(logging.INFO):
        one = consumer(group, flights, salaries, on_unresolved=lambda now: changes.append(dict(now)), **over)
        eventually(lambda: store.exists(layout.offset(group, flights, 0)))
        guarded.produce(flights, "one")
        assert [record.value for record in read(one, 1)] == [b"one"]
        assert one.poll(2 * REBALANCE_TIMEOUT_MS / 1000) is None

        assert (one.stats.losses, one.stats.registrations) == (0, 1)
        assert "TOPIC_AUTHORIZATION_FAILED" in one.stats.unresolved[forbidden]
        assert forbidden in changes[-1]
        assert len(told(caplog, f"cannot read partitions={salaries}[0]")) == 1
        assert owner(store, group, salaries) is None
        status = described(store, group).status
        assert f"no member may read {salaries}" in status
        assert len(told(caplog, f"no member may read topics={salaries}")) == 1

        # the group keeps the first end that the instance lists, so nothing is skipped until the right is given
        eventually(lambda: store.exists(layout.offset(group, salaries, 0)))
        assert store.get(layout.offset(group, salaries, 0)).data == b"1"
        guarded.produce(salaries, "two")
        guarded.allow(salaries, AclOperation.READ)
        assert [record.value for record in read(one, 1)] == [b"two"]
        eventually(lambda: not one.stats.unresolved)
        assert changes[-1] == {}
        assert len(told(caplog, f"partitions={salaries}[0]")) == 2
        assert one.stats.losses == 0
        assert owner(store, group, salaries) == one.consumer_id
        assert "may read" not in described(store, group).status
        assert len(told(caplog, f"topics={salaries}")) == 2


def test_a_forbidden_topic_goes_to_a_member_that_may_read_it_also_under_a_pattern(
    guarded: Guarded, store: KazooStore, consumer: Make
) -> None:
    open_to_all, closed = guarded.topic("shared-open", AclOperation.READ), guarded.topic("shared-closed")
    for topic in (open_to_all, closed):
        guarded.allow(topic, AclOperation.READ, user="boss")
    low = consumer("shared", user="reader", include="shared-.*", consumer_id="low")
    eventually(lambda: described(store, "shared").status.find("no member may read") >= 0)
    high = consumer("shared", user="boss", include="shared-.*", consumer_id="high")
    eventually(lambda: owner(store, "shared", closed) == "high")
    eventually(lambda: store.exists(layout.offset("shared", closed, 0)))  # what comes before is not kept
    guarded.produce(closed, "for high")
    assert [record.value for record in read(high, 1)] == [b"for high"]
    assert low.stats.losses == 0


@pytest.mark.parametrize("rights", [(), (AclOperation.DESCRIBE,)], ids=["may not describe", "may not read"])
def test_a_member_that_may_not_read_a_topic_with_stored_offsets_refuses_it(
    guarded: Guarded, store: KazooStore, consumer: Make, rights: tuple[Any, ...]
) -> None:
    group = f"stored-{len(rights)}"
    topic = guarded.topic(group, *rights)
    guarded.allow(topic, AclOperation.READ, user="boss")
    guarded.produce(topic, "a")
    high = consumer(group, topic, user="boss", auto_offset_reset="earliest")
    assert [record.value for record in read(high, 1)] == [b"a"]
    high.commit()
    high.close()
    low = consumer(group, topic, consumer_id="low")
    eventually(lambda: low.poll(0.1) is None and low.stats.unresolved)
    eventually(lambda: low.poll(0.1) is None and owner(store, group, topic) is None)
    guarded.produce(topic, "b")
    again = consumer(group, topic, user="boss", consumer_id="again")
    assert [record.value for record in read(again, 1)] == [b"b"]
    assert low.stats.losses == 0


def test_a_topic_that_a_member_may_not_describe_is_refused_also_if_it_is_its_only_one(
    guarded: Guarded, store: KazooStore, consumer: Make
) -> None:
    topic = guarded.topic("alone")
    low = consumer("alone", topic, consumer_id="low")
    eventually(lambda: owner(store, "alone", topic) is None and low.stats.unresolved)
    assert "TOPIC_AUTHORIZATION_FAILED" in low.stats.unresolved[TopicPartition(topic, 0)]
    guarded.allow(topic, AclOperation.READ)
    eventually(lambda: owner(store, "alone", topic) == "low")


def test_a_right_that_is_taken_away_moves_the_topic_and_ends_no_application(
    guarded: Guarded, store: KazooStore, consumer: Make
) -> None:
    topic, other = guarded.topic("taken", AclOperation.READ), guarded.topic("kept", AclOperation.READ)
    one = consumer("taken-away", topic, other, auto_offset_reset="earliest")
    guarded.produce(topic, "a")
    assert [record.value for record in read(one, 1)] == [b"a"]
    guarded.forbid(topic, AclOperation.READ)
    eventually(lambda: one.poll(0.1) is None and one.stats.unresolved)
    eventually(lambda: one.poll(0.1) is None and owner(store, "taken-away", topic) is None)
    guarded.produce(topic, "b")
    guarded.produce(other, "c")
    assert [record.value for record in read(one, 1)] == [b"c"]
    guarded.allow(topic, AclOperation.READ)
    assert [record.value for record in read(one, 1)] == [b"b"]
    assert one.stats.losses == 0


def test_a_spark_query_reads_its_other_topics_and_begins_a_forbidden_one_at_its_first_end(
    guarded: Guarded, store: KazooStore, elected: SocketInstance, caplog: pytest.LogCaptureFixture
) -> None:
    flights, salaries = guarded.topic("query-flights", AclOperation.READ), guarded.topic("query-salaries")
    seen(elected.service, (flights, salaries))
    guarded.produce(salaries, "before")
    options = {"zookeeper": guarded.zookeeper, "group": "query", "topics": f"{flights},{salaries}"}
    login = {f"kafka.{name}": value for name, value in login_of("reader").items() if name != "log_level"}
    query = QueryMember(SourceOptions.of(options | login))

    def planned(topic: str) -> list[tuple[int, int]]:
        query.holdings.done()
        found = query.plan(100)
        return [one for tp in found.partitions if tp.topic == topic for one in found.of_partition(tp)]

    try:
        query.await_partitions()
        eventually(lambda: not planned(flights) and store.exists(layout.offset("query", flights, 0)))
        guarded.produce(flights, "one")
        assert eventually(lambda: planned(flights)) == [(0, 1)]
        eventually(lambda: not planned(salaries) and owner(store, "query", salaries) is None)
        eventually(lambda: store.exists(layout.offset("query", salaries, 0)))
        guarded.produce(salaries, "two")
        guarded.allow(salaries, AclOperation.READ)
        assert eventually(lambda: planned(salaries)) == [(1, 2)]
        assert len(told(caplog, f"cannot read {salaries}[0]")) == 1
    finally:
        query.close()


def test_a_run_over_what_exists_does_not_wait_for_a_forbidden_topic(guarded: Guarded) -> None:
    flights, salaries = guarded.topic("run-flights", AclOperation.READ), guarded.topic("run-salaries")
    guarded.produce(flights, "one")
    options = {"zookeeper": guarded.zookeeper, "group": "run", "topics": f"{flights},{salaries}", "waitMs": "60000"}
    login = {f"kafka.{name}": value for name, value in login_of("reader").items() if name != "log_level"}
    query = QueryMember(SourceOptions.of(options | login | {"startingOffsets": "earliest"}))
    try:
        began = time.monotonic()
        assert query.ends_now() == {TopicPartition(flights, 0): 1}
        assert time.monotonic() - began < 30
    finally:
        query.close()


@pytest.mark.skipif(shutil.which("go") is None, reason="no Go toolchain here: the example in Go is not tried")
def test_a_consumer_in_another_language_refuses_a_topic_and_gets_it_back(
    guarded: Guarded, store: KazooStore, consumer: Make, elected: SocketInstance, tmp_path: Path
) -> None:
    topic = guarded.topic("for-go")
    guarded.allow(topic, AclOperation.READ, user="boss")
    place = ["-bootstrap", elected.server.address, "-group", "with-go", "-topic", topic, "-from", "earliest"]
    command = [str(go_consumer(tmp_path)), *place, "-consumer-id", "go", "-listener", "GUARDED", "-user", "reader"]
    go = ChildProcess("go", command, tmp_path / "go.log", env={"KAFKA_PASSWORD": USERS["reader"]})
    go.start()
    try:
        eventually(lambda: store.exists(layout.registration("with-go", "go")))
        eventually(lambda: described(store, "with-go").status.find(f"no member may read {topic}") >= 0)
        high = consumer("with-go", topic, user="boss", consumer_id="high", auto_offset_reset="earliest")
        guarded.produce(topic, "a")
        assert [record.value for record in read(high, 1)] == [b"a"]
        assert owner(store, "with-go", topic) == "high"
        high.commit()
        high.close()
        guarded.produce(topic, "b")
        guarded.allow(topic, AclOperation.READ)
        eventually(lambda: owner(store, "with-go", topic) == "go")
        eventually(lambda: records_of(go) == [(0, 1)])
        go.terminate()
        eventually(lambda: not go.running)
        assert go.exit_code == 0, go.log.read_text()
    finally:
        go.kill()
