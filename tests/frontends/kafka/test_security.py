"""Tests of an instance with TLS in front of a broker with TLS, SASL and ACLs. The broker decides about all rights."""

from __future__ import annotations

import contextlib
import logging
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import trustme
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kafka_coord.classic_groups.errors import Error
from kafka_coord.consumer.fetchers import KafkaFetchers, client_settings
from kafka_coord.consumer.settings import OffsetReset
from kafka_coord.dev.cluster.kafka import Broker, KafkaSettings
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from kafka_coord.errors import BrokerError
from kafka_coord.frontends.kafka import access, connection
from kafka_coord.frontends.kafka.listener import KafkaListener
from kafka_coord.frontends.listening import Certificate
from kafka_coord.groups.next_records import Next, probe_with
from kafka_coord.kafka.authentication import broker_security
from kafka_coord.kafka.coordinators import LISTS_A_PART
from kafka_coord.model import StartPoint
from kafka_coord.model import TopicPartition as Partition
from kafka_coord.spark import fetching
from kafka_coord.wire.messages import message
from tests.cli.running import Ran, run
from tests.conftest import _shared_servers, brokers_of_a_run
from tests.frontends.kafka.conftest import serving_beside
from tests.frontends.kafka.peer import Peer, committing, join
from tests.waiting import eventually
from tests.zk.tls import pem_key_store

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
TOPIC, SECRET_TOPIC, GROUP = "flights", "salaries", "delays"
PASSWORDS = {"instance": "i-secret", "alice": "a-secret", "mallory": "m-secret"}


@dataclass
class Secured:
    """The broker and the instance. ``ca`` is the CA that clients trust."""

    broker: Broker
    listener: KafkaListener
    ca: Path
    zookeeper: str

    def settings(self, user: str, mechanism: str = "PLAIN", password: str | None = None) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.listener.address,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.ca),
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": PASSWORDS[user] if password is None else password,
        }

    def consumer(self, user: str, group: str = GROUP, **more: Any) -> Consumer:
        given = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        return Consumer(self.settings(user, **more) | given)


def brokers_properties(directory: Path, authority: trustme.CA) -> dict[str, str]:
    store = directory / "broker.pem"
    store.write_bytes(pem_key_store(authority))
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    of_listener = "listener.name.coord"
    return {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,COORD:SASL_SSL",
        f"{of_listener}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        f"{of_listener}.plain.sasl.jaas.config": f"{plain} {users};",
        f"{of_listener}.scram-sha-256.sasl.jaas.config": f"{scram};",
        f"{of_listener}.scram-sha-512.sasl.jaas.config": f"{scram};",
        f"{of_listener}.ssl.keystore.type": "PEM",
        f"{of_listener}.ssl.keystore.location": str(store),
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:instance;User:ANONYMOUS",
    }


def allowed(kind: ResourceType, name: str, operation: AclOperation, user: str = "alice") -> AclBinding:
    who = f"User:{user}", "*", operation, AclPermissionType.ALLOW
    return AclBinding(kind, name, ResourcePatternType.LITERAL, *who)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory, authority = tmp_path_factory.mktemp("secured"), trustme.CA()
    ca, own = directory / "ca.pem", directory / "instance.pem"
    authority.cert_pem.write_to_path(ca)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(own)
    settings = KafkaSettings(for_instances=True, properties=brokers_properties(directory, authority))
    with (
        ZooKeeperServer(directory / "zookeeper", settings=ZooKeeperSettings(tick_ms=200)) as server,
        brokers_of_a_run(directory, server.connect_string, 1, settings) as cluster,
    ):
        (broker,) = cluster.brokers
        admin = AdminClient({"bootstrap.servers": broker.address})
        for topic in TOPIC, SECRET_TOPIC:
            TopicAdmin(broker.address).create(topic, 1, replication=1)
        rights = [
            allowed(ResourceType.TOPIC, TOPIC, AclOperation.READ),
            allowed(ResourceType.TOPIC, TOPIC, AclOperation.WRITE),
            allowed(ResourceType.GROUP, GROUP, AclOperation.READ),
            allowed(ResourceType.GROUP, "seen", AclOperation.DESCRIBE),
        ]
        for done in admin.create_acls(rights).values():
            done.result(30)
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):  # in KRaft mode, one a request
            changes = [
                UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, 4096), password.encode())
                for name, password in PASSWORDS.items()
            ]
            for changed in admin.alter_user_scram_credentials(changes).values():
                changed.result(30)
        _shared_servers.append(broker)
        security = broker_security(
            {
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(ca),
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "instance",
                "sasl.password": PASSWORDS["instance"],
            }
        )
        tls = Certificate(own, None).context
        try:
            with serving_beside(broker, server.connect_string, security=security, tls=tls) as listener:
                yield Secured(broker, listener, ca, server.connect_string)
        finally:
            _shared_servers.remove(broker)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_client_with_the_rights_consumes_commits_and_resets_offsets(secured: Secured, mechanism: str) -> None:
    producer = Producer(secured.settings("alice", mechanism))
    producer.produce(TOPIC, b"one")
    assert producer.flush(30) == 0
    one = secured.consumer("alice", mechanism=mechanism)
    one.subscribe([TOPIC])
    record = eventually(lambda: one.poll(0.1), within_s=60)
    one.commit(message=record, asynchronous=False)
    (found,) = one.committed([TopicPartition(TOPIC, 0)], 30)
    assert found.offset == record.offset() + 1
    assert "User:alice" in {getattr(one, "principal", "") for one in secured.listener.clients.connected}
    one.close()
    admin = AdminClient(secured.settings("instance"))
    (reset,) = admin.alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(GROUP, [TopicPartition(TOPIC, 0, 0)])]
    ).values()
    reset.result(30)


def test_operators_commands_use_tls_and_sasl(secured: Secured, tmp_path: Path) -> None:
    with closing(secured.consumer("instance", "looked-at")) as one:
        one.commit(offsets=[TopicPartition(TOPIC, 0, 5)], asynchronous=False)

    def ask(*command: str, user: str = "instance", **given: str) -> Ran:
        properties = {key: value for key, value in secured.settings(user, **given).items() if "." in key}
        del properties["bootstrap.servers"]
        config = tmp_path / "coord.toml"
        config.write_text("[kafka]\n" + "".join(f'"{key}" = "{value}"\n' for key, value in properties.items()))
        config.chmod(0o600)
        return run(*command, "--config", str(config), "-o", "json", zookeeper=secured.zookeeper)

    wrong = "not-the-secret"
    listed = ask("groups", "list")
    assert "looked-at" in [one["group"] for one in listed.json()]
    assert LISTS_A_PART not in listed.err
    part = ask("groups", "list", user="alice")
    assert "looked-at" not in [one["group"] for one in part.json()]
    assert LISTS_A_PART in part.err
    described = ask("groups", "describe", "looked-at", mechanism="SCRAM-SHA-256").json()
    assert [(one["committed_offset"], one["end_offset"]) for one in described["offsets"]] == [(5, ANY)]
    assert ask("groups", "history", "looked-at").code == 0  # this command reads the log

    refused = ask("groups", "describe", "looked-at", password=wrong)
    assert refused.code == BrokerError.exit_code
    assert "not authenticated" in refused.err
    assert wrong not in refused.out + refused.err


@pytest.fixture
def asking(secured: Secured) -> Callable[[str], Peer]:
    """Opens connections over TLS that are authenticated as a given user."""

    def over_tls(user: str) -> Peer:
        peer = over(secured, Peer(secured.listener))
        assert not peer.ask("SaslHandshake", 1, mechanism="PLAIN").error_code
        said = f"\0{user}\0{PASSWORDS[user]}".encode()
        assert not peer.ask("SaslAuthenticate", 0, auth_bytes=said).error_code
        return peer

    return over_tls


def over(secured: Secured, peer: Peer) -> Peer:
    context = ssl.create_default_context(cafile=str(secured.ca))
    peer.socket = context.wrap_socket(peer.socket, server_hostname="127.0.0.1")
    return peer


def commit(peer: Peer, group: str, *topics: str, offset: int = 7) -> list[int]:
    """Commits the offset in partition 0 of each topic. Returns the error for each topic."""
    found = peer.ask("OffsetCommit", 7, group_id=group, **committing(*topics, offset=offset))
    return [topic.partitions[0].error_code for topic in found.topics]


def test_every_request_for_a_group_without_the_right_is_refused(asking: Callable[[str], Peer]) -> None:
    refused = Error.GROUP_AUTHORIZATION_FAILED
    member = {"group_id": GROUP, "member_id": "x", "generation_id": 1}
    with asking("mallory") as peer:
        assert peer.ask("FindCoordinator", 2, key=GROUP).error_code == refused
        assert peer.ask("JoinGroup", 3, **join(GROUP)).error_code == refused
        assert peer.ask("SyncGroup", 3, **member).error_code == refused
        assert peer.ask("Heartbeat", 3, **member).error_code == refused
        assert peer.ask("LeaveGroup", 2, group_id=GROUP, member_id="x").error_code == refused
        assert commit(peer, GROUP, TOPIC) == [refused]
        assert peer.ask("OffsetFetch", 7, group_id=GROUP, topics=None).error_code == refused
        assert peer.ask("OffsetDelete", 0, group_id=GROUP, topics=()).error_code == refused
        assert [one.error_code for one in peer.ask("DescribeGroups", 4, groups=(GROUP,)).groups] == [refused]
        assert [one.error_code for one in peer.ask("DeleteGroups", 1, groups_names=(GROUP,)).results] == [refused]
        assert peer.ask("ListGroups", 2).groups == ()
    with asking("alice") as peer:  # READ includes DESCRIBE, but not DELETE
        assert commit(peer, GROUP, TOPIC) == [Error.NONE]
        assert not peer.ask("FindCoordinator", 2, key=GROUP).error_code
        assert [one.error_code for one in peer.ask("DescribeGroups", 4, groups=(GROUP,)).groups] == [Error.NONE]
        assert [one.error_code for one in peer.ask("DeleteGroups", 1, groups_names=(GROUP,)).results] == [refused]
        assert GROUP in {one.group_id for one in peer.ask("ListGroups", 2).groups}


def test_descriptions_contain_the_operations_that_the_client_may_perform(asking: Callable[[str], Peer]) -> None:
    def operations(user: str, **asked: bool) -> int:
        with asking(user) as peer:
            (found,) = peer.ask("DescribeGroups", 4, groups=(GROUP,), **asked).groups
            return int(found.authorized_operations)

    read, delete, describe = 1 << 3, 1 << 6, 1 << 8
    assert operations("alice", include_authorized_operations=True) == read | describe
    assert operations("instance", include_authorized_operations=True) == read | delete | describe
    assert operations("alice") == -(1 << 31)


def test_the_right_to_each_topic_of_a_request_is_checked_separately(asking: Callable[[str], Peer]) -> None:
    refused = Error.TOPIC_AUTHORIZATION_FAILED
    with asking("instance") as super_user:
        assert commit(super_user, GROUP, SECRET_TOPIC, offset=5) == [Error.NONE]
    of_topic = message("OffsetFetchRequest").struct("OffsetFetchRequestTopic")
    asked = tuple(of_topic(name=name, partition_indexes=(0,)) for name in (TOPIC, SECRET_TOPIC))
    with asking("alice") as peer:
        assert commit(peer, GROUP, SECRET_TOPIC, TOPIC) == [refused, Error.NONE]
        some = peer.ask("OffsetFetch", 7, group_id=GROUP, topics=asked)
        found = {(one.name, one.partitions[0].committed_offset, one.partitions[0].error_code) for one in some.topics}
        assert found == {(TOPIC, 7, Error.NONE), (SECRET_TOPIC, -1, refused)}
        every = peer.ask("OffsetFetch", 7, group_id=GROUP, topics=None)
        assert [one.name for one in every.topics] == [TOPIC]


def test_granted_and_revoked_rights_take_effect_soon(
    secured: Secured, asking: Callable[[str], Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "KNOWN_S", 0.2)
    admin = AdminClient({"bootstrap.servers": secured.broker.address})
    right = allowed(ResourceType.GROUP, "late", AclOperation.READ)
    with asking("alice") as peer:
        assert commit(peer, "late", TOPIC) == [Error.GROUP_AUTHORIZATION_FAILED]
        admin.create_acls([right])[right].result(30)
        eventually(lambda: commit(peer, "late", TOPIC) == [Error.NONE], every_s=0.1)
        for done in admin.delete_acls([right_filter(right)]).values():
            done.result(30)
        eventually(lambda: commit(peer, "late", TOPIC) == [Error.GROUP_AUTHORIZATION_FAILED], every_s=0.1)


def right_filter(right: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        right.restype,
        right.name,
        right.resource_pattern_type,
        right.principal,
        right.host,
        right.operation,
        right.permission_type,
    )


def test_no_group_request_is_answered_before_authentication(secured: Secured) -> None:
    for name, version, fields in (
        ("Heartbeat", 3, {"group_id": GROUP, "member_id": "x", "generation_id": 1}),
        ("ListGroups", 2, {}),
        ("FindCoordinator", 2, {"key": GROUP}),
        ("OffsetFetch", 7, {"group_id": GROUP, "topics": None}),
    ):
        with over(secured, Peer(secured.listener)) as peer:
            peer.send(name, version, **fields)
            assert peer.socket.recv(1) == b""


def test_the_broker_refuses_a_wrong_password(secured: Secured) -> None:
    errors: list[str] = []
    settings = secured.settings("alice", password="wrong") | {"error_cb": lambda error: errors.append(error.name())}  # noqa: S106
    client = AdminClient(settings)
    eventually(lambda: client.poll(0.1) or "_AUTHENTICATION" in errors)


def test_a_client_without_tls_is_disconnected(secured: Secured) -> None:
    with Peer(secured.listener) as plain:
        plain.socket.sendall(b"\0\0\0\x0a" + b"\0\3\0\4" + b"\0\0\0\1" + b"\xff\xff")
        assert plain.is_closed()


@contextlib.contextmanager
def frozen(broker: Broker) -> Iterator[None]:
    broker.pause()
    try:
        yield
    finally:
        broker.resume()


def test_connections_that_wait_for_a_frozen_broker_are_closed(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "ANSWER_S", 0.5)
    monkeypatch.setattr(access, "KNOWN_S", 0.0)
    caplog.set_level(logging.INFO, logger="kafka_coord.frontends.kafka")
    one = secured.consumer("alice")
    one.commit(offsets=[TopicPartition(TOPIC, 0, 40)], asynchronous=False)
    with frozen(secured.broker):
        one.commit(offsets=[TopicPartition(TOPIC, 0, 41)], asynchronous=True)
        eventually(lambda: "the broker has not answered" in caplog.text)
    eventually(lambda: commits(one, 42))
    one.close()


def commits(one: Consumer, offset: int) -> bool:
    try:
        one.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
    except KafkaException:
        return False
    return True


def test_clients_reconnect_and_commit_after_the_broker_was_killed_and_restarted(secured: Secured) -> None:
    """This test comes near the end of the module, because it kills the broker and starts it again."""
    one = secured.consumer("alice")
    one.commit(offsets=[TopicPartition(TOPIC, 0, 41)], asynchronous=False)
    secured.broker.kill()
    secured.broker.start()

    def committed() -> int:
        try:
            return int(one.committed([TopicPartition(TOPIC, 0)], 5)[0].offset)
        except KafkaException:
            return -1

    eventually(lambda: committed() == 41, within_s=60)
    eventually(lambda: commits(one, 43))
    one.close()


def test_whoever_only_assigns_partitions_needs_no_right_to_any_group(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark's tasks, the reader of lag, and the library's fetchers. Alice may read the topic, but no such group."""
    producer = Producer(secured.settings("alice"))
    for value in (b"one", b"two"):
        producer.produce(TOPIC, value)
    producer.flush(30)
    settings = {name: str(value) for name, value in secured.settings("alice").items()}
    for _ in range(2):  # the second time with a client that has been refused the coordinator already
        ranges = [(TOPIC, 0, 0, 2)]
        batches = fetching.fetch(ranges, settings, headers=False, fail=True)
        assert sum(batch.num_rows for batch in batches) == 2
        time.sleep(1.5)
    fetching._close_all()

    probe = probe_with(lambda: secured.listener.address, settings)
    (found,) = probe({Partition(TOPIC, 0): 0}, 30.0).values()
    assert found == Next(0, is_record=True, timestamp_ms=found.timestamp_ms)

    caplog.clear()
    given = {"consumer_id": "c1", "group": GROUP, "given": secured.settings("alice")}
    fetchers = KafkaFetchers(
        client_settings(**given),
        streams=1,
        reset=OffsetReset.EARLIEST,
        auto_commit=False,
        hands_out_until=lambda: float("inf"),
        check=lambda: None,
        wake=lambda: None,
    )
    try:
        fetchers.connect((secured.listener.address,))
        fetchers.hold({Partition(TOPIC, 0): StartPoint(0)})
        fetchers.begin([Partition(TOPIC, 0)])
        eventually(lambda: fetchers.streams[0].take(10, 0.1), within_s=30)
        time.sleep(1.5)
        assert fetchers.streams[0].take(10, 0.1) is not None
    finally:
        fetchers.close()
    assert "GROUP_AUTHORIZATION_FAILED" not in caplog.text


def test_a_managed_group_with_topics_that_the_client_may_not_describe_is_not_described(
    asking: Callable[[str], Peer],
) -> None:
    with asking("instance") as member, asking("alice") as reader:
        for name, topic in (("m1", TOPIC), ("m2", SECRET_TOPIC)):
            joining = {"member_id": name, "member_epoch": 0, "rebalance_timeout_ms": 30_000, "topic_partitions": ()}
            joined = member.ask(
                "ConsumerGroupHeartbeat", 0, group_id="seen", subscribed_topic_names=(topic,), **joining
            )
            assert joined.error_code == Error.NONE
            (found,) = eventually(lambda: reader.ask("ConsumerGroupDescribe", 0, group_ids=("seen",)).groups)
            if topic == TOPIC:
                assert [one.member_id for one in found.members] == ["m1"]
        assert (found.error_code, found.members) == (Error.TOPIC_AUTHORIZATION_FAILED, ())
        (every,) = member.ask("ConsumerGroupDescribe", 0, group_ids=("seen",)).groups
        assert len(every.members) == 2


def test_a_stopping_listener_closes_its_connections_to_a_frozen_broker(
    secured: Secured, asking: Callable[[str], Peer]
) -> None:
    """The last test of the module, because it stops the listener. The frozen broker does not answer a TLS shutdown."""
    with asking("alice"), frozen(secured.broker):
        secured.listener.close()
    assert not secured.listener.clients.connected
