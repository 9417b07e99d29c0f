"""Kafka 4.3 with ACLs and four listeners of different security, beside an instance that has exactly the rights that
docs/kafka-clients.md lists for its principal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer, TopicPartition
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
from kafka_coord.dev.cluster.coordinator import Coordinator, serve_beside
from kafka_coord.dev.cluster.jars import KAFKA_4, class_path
from kafka_coord.dev.cluster.kafka import KafkaSettings, KraftBroker
from kafka_coord.dev.cluster.ports import LOOPBACK, free_port
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.errors import DevClusterError
from kafka_coord.grouplog.term import TOPIC as LOG
from kafka_coord.zk import connect, layout
from kafka_coord.zk.brokers import read_brokers
from kafka_coord.zk.root import read_asked_listeners
from tests.cli.running import Ran, run
from tests.waiting import eventually
from tests.zk.tls import pem_key_store

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
PASSWORDS = {"instance": "i-secret", "alice": "a-secret"}
INTERNAL, EXTERNAL = "INTERNAL", "EXTERNAL"
PROTOCOLS = {
    "PLAINTEXT": "PLAINTEXT",
    INTERNAL: "SASL_SSL",
    EXTERNAL: "SASL_PLAINTEXT",
    "COORD": "SASL_SSL",
    "CONTROLLER": "PLAINTEXT",
}
FLIGHTS, LATER = "flights", "later"


@dataclass
class Secured:
    broker: KraftBroker
    instance: Coordinator
    channel: str
    ca: Path
    config: Path
    """What ``serve`` and the operator's commands read."""

    @property
    def zookeeper(self) -> str:
        return self.broker.zookeeper

    def login(self, protocol: str, user: str = "alice") -> dict[str, str]:
        sasl = {"sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": PASSWORDS[user]}
        tls = {"ssl.ca.location": str(self.ca)} if protocol.endswith("SSL") else {}
        return {"security.protocol": protocol, **sasl, **tls}

    def member(self, group: str, protocol: str) -> KafkaConsumer:
        """A stock client, which knows only the instance."""
        at = {"bootstrap.servers": self.broker.instance_address, "auto.offset.reset": "earliest"}
        return KafkaConsumer(self.login("SASL_SSL") | at | {"group.id": group, "group.protocol": protocol})

    def doctor(self) -> Ran:
        return run("doctor", "--config", str(self.config), zookeeper=self.zookeeper)


def properties(directory: Path, authority: trustme.CA) -> dict[str, str]:
    store = directory / "broker.pem"
    store.write_bytes(pem_key_store(authority))
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    lines = {
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in PROTOCOLS.items()),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    for name, protocol in PROTOCOLS.items():
        of = f"listener.name.{name.lower()}"
        if protocol.startswith("SASL"):
            plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
            lines[f"{of}.sasl.enabled.mechanisms"] = "PLAIN"
            lines[f"{of}.plain.sasl.jaas.config"] = f"{plain} {users};"
        if protocol.endswith("SSL"):
            lines |= {f"{of}.ssl.keystore.type": "PEM", f"{of}.ssl.keystore.location": str(store)}
    return lines


def rule(
    kind: ResourceType, name: str, operation: AclOperation, user: str = "instance", *, denied: bool = False
) -> AclBinding:
    pattern = ResourcePatternType.LITERAL
    permission = AclPermissionType.DENY if denied else AclPermissionType.ALLOW
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, permission)


OF_INSTANCE = [
    *(rule(ResourceType.TOPIC, LOG, one) for one in (AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE)),
    rule(ResourceType.TOPIC, LOG, AclOperation.CREATE),
    rule(ResourceType.TOPIC, LOG, AclOperation.DESCRIBE_CONFIGS),
    rule(ResourceType.TOPIC, "*", AclOperation.DESCRIBE),
    rule(ResourceType.GROUP, "*", AclOperation.DESCRIBE),
    rule(ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE_CONFIGS),
]
OF_ALICE = [
    rule(ResourceType.TOPIC, "*", AclOperation.READ, "alice"),
    rule(ResourceType.TOPIC, "*", AclOperation.WRITE, "alice"),
    rule(ResourceType.GROUP, "*", AclOperation.READ, "alice"),
]


def allow(admin: AdminClient, *rules: AclBinding) -> None:
    for done in admin.create_acls(list(rules)).values():
        done.result(30)


@contextmanager
def denied(secured: Secured, *rules: AclBinding) -> Iterator[None]:
    """Denies what the rules allow."""
    admin = AdminClient({"bootstrap.servers": secured.broker.address})
    forbidden = [rule(one.restype, one.name, one.operation, denied=True) for one in rules]
    allow(admin, *forbidden)
    try:
        yield
    finally:
        for one in forbidden:
            where = one.restype, one.name, one.resource_pattern_type, one.principal, one.host
            found = AclBindingFilter(*where, one.operation, one.permission_type)
            admin.delete_acls([found])[found].result(30)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory, authority = tmp_path_factory.mktemp("secured"), trustme.CA()
    ca, own = directory / "ca.pem", directory / "instance.pem"
    authority.cert_pem.write_to_path(ca)
    authority.issue_cert(LOOPBACK).private_key_and_cert_chain_pem.write_to_path(own)
    try:
        class_path(KAFKA_4)
    except DevClusterError as error:
        pytest.skip(f"no Kafka 4.3: {error}")
    further = (INTERNAL, EXTERNAL)  # the tests' own tools use PLAINTEXT, without a password
    settings = KafkaSettings(for_instances=True, listeners=further, properties=properties(directory, authority))
    with (
        ZooKeeperServer(directory / "zookeeper") as server,
        KraftBroker(directory / "kafka", 1, server.connect_string, settings=settings) as broker,
    ):
        allow(AdminClient({"bootstrap.servers": broker.address}), *OF_INSTANCE, *OF_ALICE)
        TopicAdmin(broker.address).create(FLIGHTS, 2, replication=1)
        config, channel = directory / "coord.toml", f"{LOOPBACK}:{free_port()}"
        serve = [
            *serve_beside(1, server.connect_string),
            *("--config", str(config), "--bootstrap", broker.further[INTERNAL], "--listen-channel", channel),
            *("--listen-kafka", broker.instance_address, "--broker-listener", broker.listener_address),
            *("--kafka-certificate", str(own), "--kafka-initial-rebalance-delay-ms", "0"),
        ]
        made = Secured(broker, Coordinator(directory, broker, lambda _: serve), channel, ca, config)
        login = made.login("SASL_SSL", "instance").items()
        config.write_text("[kafka]\n" + "".join(f'"{key}" = "{value}"\n' for key, value in login))
        config.chmod(0o600)
        begun = run("init", "--config", str(config), "--bootstrap", broker.further[INTERNAL], zookeeper=made.zookeeper)
        assert begun.code == 0, begun.err
        made.instance.start()
        try:
            yield made
        finally:
            print(made.instance.process.log.read_text()[-6000:])  # noqa: T201 - shown if a test failed
            made.instance.stop()
            broker.kill()  # a clean stop takes seconds


def produce(secured: Secured, topic: str, *values: bytes) -> None:
    producer = Producer(secured.login("SASL_SSL") | {"bootstrap.servers": secured.broker.instance_address})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def reads(poll: Callable[[], bytes | None], values: set[bytes]) -> None:
    found: set[bytes] = set()

    def all_came() -> bool:
        value = poll()
        found.update({value} if value is not None else ())
        return found >= values

    eventually(all_came, within_s=60, every_s=0)


def polled(consumer: KafkaConsumer) -> bytes | None:
    message = consumer.poll(0.2)
    return message.value() if message is not None and message.error() is None else None


def test_members_of_every_kind_read_each_over_its_own_listener(secured: Secured) -> None:
    """The instance asks on INTERNAL alone. What the broker advertises on the others, its settings tell."""
    with closing(connect(secured.zookeeper)) as store:
        found = eventually(lambda: read_brokers(store))
        (broker,) = found.live
        assert {one.name: (one.protocol, one.address) for one in broker.listeners} == {
            "PLAINTEXT": ("PLAINTEXT", secured.broker.address),
            INTERNAL: ("SASL_SSL", secured.broker.further[INTERNAL]),
            EXTERNAL: ("SASL_PLAINTEXT", secured.broker.further[EXTERNAL]),
            "COORD": ("SASL_SSL", secured.broker.instance_address),
        }
        asked = {"PLAINTEXT", INTERNAL, EXTERNAL, "COORD"}
        eventually(lambda: set(read_asked_listeners(store) or ()) == asked)
        eventually(lambda: FLIGHTS in store.children(layout.BROKER_TOPICS))
    values = {b"%d" % number for number in range(10)}
    produce(secured, FLIGHTS, *values)
    reading: dict[str, Any] = {"topics": [FLIGHTS], "auto_offset_reset": "earliest"}
    classic, modern = secured.member("classic", "classic"), secured.member("modern", "consumer")
    with (
        Consumer(secured.zookeeper, group="own", kafka=secured.login("SASL_PLAINTEXT"), **reading) as own,
        Consumer(
            bootstrap=secured.channel, group="socket", kafka=secured.login("SASL_SSL"), listener=INTERNAL, **reading
        ) as by_socket,
    ):
        for one in (classic, modern):
            one.subscribe([FLIGHTS])
            reads(lambda one=one: polled(one), values)  # type: ignore[misc]
            one.close()
        for consumer in (own, by_socket):
            reads(lambda consumer=consumer: getattr(consumer.poll(0.2), "value", None), values)  # type: ignore[misc]


def test_the_rights_that_the_documents_list_are_enough(secured: Secured) -> None:
    said = eventually(lambda: (ran := secured.doctor()).code == 0 and ran, within_s=60)
    assert "the metadata comes from the brokers" in run("doctor", "--all", zookeeper=secured.zookeeper).out, said.out


@pytest.mark.long
def test_a_topic_that_an_acl_hides_stays_and_one_that_it_has_always_hidden_is_named(secured: Secured) -> None:
    """It takes half a minute until what lasts is told."""
    hidden = [rule(ResourceType.TOPIC, name, AclOperation.DESCRIBE) for name in (FLIGHTS, LATER)]
    reading: dict[str, Any] = {"auto_offset_reset": "earliest", "kafka": secured.login("SASL_PLAINTEXT")}
    with (
        Consumer(secured.zookeeper, group="keeps", topics=[FLIGHTS], **reading) as keeps,
        Consumer(secured.zookeeper, group="waits", topics=[LATER], **reading) as waits,
    ):
        eventually(lambda: len(keeps.assignment()) == 2)
        with denied(secured, *hidden):
            TopicAdmin(secured.broker.address).create(LATER, 1, replication=1)
            told = f"hide 2 topics from this instance, or they are being deleted: {FLIGHTS}"
            eventually(lambda: told in secured.doctor().out, within_s=90, every_s=1)
            assert "may describe all topics" in secured.doctor().out
            assert len(keeps.assignment()) == 2
            assert not waits.assignment()
        eventually(lambda: len(waits.assignment()) == 1, within_s=30)
        eventually(lambda: secured.doctor().code == 0, within_s=30)


@pytest.mark.long
def test_a_right_that_is_missing_is_a_finding(secured: Secured) -> None:
    """Settings are asked for once a minute, and the log is written to when a member commits."""
    _, _, writing, _, settings_of_log, _, groups, settings = OF_INSTANCE
    member = secured.member("commits", "classic")

    def all_said(*words: str, by: KafkaConsumer = member) -> bool:
        by.commit(offsets=[TopicPartition(FLIGHTS, 0, 1)], asynchronous=True)
        said = secured.doctor().out
        return all(one in said for one in words)

    on_log, on_all = f"denies its instance a right on {LOG}", "give the instance's user"
    with denied(secured, writing, settings):
        words = on_log, f"{on_all} DESCRIBE_CONFIGS on the cluster"
        eventually(lambda: all_said(*words), within_s=120, every_s=1)
    eventually(lambda: secured.doctor().code == 0, within_s=120, every_s=1)
    member.close()
    theirs = KafkaConsumer({"bootstrap.servers": secured.broker.address, "group.id": "theirs"})  # past the instance
    theirs.commit(offsets=[TopicPartition(FLIGHTS, 0, 1)], asynchronous=False)
    theirs.close()
    newcomer = secured.member("newcomer", "classic")
    with denied(secured, groups, settings_of_log):
        words = "describe group newcomer", f"{on_all} DESCRIBE on all groups", f"settings of {LOG} are unknown"
        eventually(lambda: all_said(*words, by=newcomer), within_s=60, every_s=1)
    eventually(lambda: secured.doctor().code == 0, within_s=60, every_s=1)
    newcomer.commit(offsets=[TopicPartition(FLIGHTS, 0, 1)], asynchronous=False)
    newcomer.close()


@pytest.mark.long
def test_a_right_on_the_groups_log_that_is_missing_at_the_start_is_a_finding(secured: Secured) -> None:
    """Last in this module: it ends the instance that the others use."""
    describing, reading, _, creating, *_ = OF_INSTANCE
    words = f"denies its instance a right on {LOG}", "READ, WRITE, DESCRIBE and, for a new log, CREATE"
    for right in (describing, reading, creating):
        secured.instance.stop()
        if right is creating:
            TopicAdmin(secured.broker.address).delete(LOG)
        with denied(secured, right):
            secured.instance.start()
            eventually(lambda: all(one in secured.doctor().out for one in words), within_s=60, every_s=1)
        eventually(lambda: secured.doctor().code == 0, within_s=60, every_s=1)
    secured.instance.stop()
