"""Tests of the doctor's findings about stock Kafka clients, and of its remedies."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, TopicPartition

from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.grouplog.term import PARTITIONS, TOPIC
from kafka_coord.groups.instances import InstanceDirectory
from kafka_coord.model import Broker, Listener
from kafka_coord.model import json_fields as fields
from kafka_coord.monitor.doctor import Finding, Severity
from kafka_coord.monitor.doctor.kafka_clients import Topic, _check_listeners, check_kafka_clients, check_topic
from kafka_coord.zk import layout
from tests.frontends.kafka.conftest import Front, published
from tests.frontends.kafka.java import KafkaTools
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]


@pytest.fixture(scope="module", autouse=True)
def _published(front: Front) -> Iterator[None]:
    with published(front.store, front.listeners):
        yield


def examined(front: Front) -> list[Finding]:
    return list(check_kafka_clients(front.store, {}))


def bad(front: Front) -> list[Finding]:
    return [one for one in examined(front) if one.severity in {Severity.WARNING, Severity.ERROR}]


@contextmanager
def descriptor(front: Front, broker_id: int, data: bytes) -> Iterator[None]:
    path = layout.instance(broker_id)
    before = front.store.get(path).data
    front.store.set(path, data)
    try:
        yield
    finally:
        front.store.set(path, before)


def serving_at(front: Front, broker_id: int, endpoints: Mapping[str, str]) -> bytes:
    path = layout.instance(broker_id)
    return fields.dump(fields.load(front.store.get(path).data, path) | {"endpoints": endpoints})


def test_a_healthy_cluster_causes_no_warnings(front: Front) -> None:
    findings = examined(front)
    assert {one.severity for one in findings} == {Severity.OK}
    assert {one.check for one in findings} == {"kafka clients", "groups log", "native groups"}


def test_an_unreadable_descriptor_is_reported(front: Front) -> None:
    with descriptor(front, 2, b"\xff"):
        found = [one.what for one in bad(front)]
    assert any(one.startswith("/consumers/coordinators/2 cannot be read") for one in found)
    assert any("no instance beside broker 2 serves Kafka clients" in one for one in found)


def test_an_instance_that_its_broker_does_not_advertise_is_reported(front: Front) -> None:
    elsewhere = serving_at(front, 1, {"kafka": f"127.0.0.1:{front.cluster.broker(1).port}"})
    with descriptor(front, 1, elsewhere):
        found = [one.what for one in bad(front)]
    assert any("instance 2 sends its clients directly to brokers: broker 1 at" in one for one in found)


def test_an_instance_that_does_not_answer_is_reported(front: Front) -> None:
    with descriptor(front, 3, serving_at(front, 3, {"kafka": "127.0.0.1:1"})):
        found = [one.what for one in bad(front)]
    assert any(one.startswith("instance 3 does not answer: 127.0.0.1:1: ") for one in found)
    assert any("no listener of broker 3 advertises its instance at 127.0.0.1:1" in one for one in found)


def test_different_listener_names_of_the_brokers_are_reported() -> None:
    seen = InstanceDirectory({1: "h1:9192", 2: "h2:9192"}, {})
    one = Broker(1, (Listener("PLAINTEXT", "PLAINTEXT", "h1:9092"), Listener("COORD", "PLAINTEXT", "h1:9192")))
    two = Broker(2, (Listener("PLAINTEXT", "PLAINTEXT", "h2:9092"), Listener("OTHER", "PLAINTEXT", "h2:9192")))
    (found,) = _check_listeners(seen, (one, two))
    assert "listeners of different names (1: COORD, 2: OTHER)" in found.what


def test_the_doctors_command_corrects_a_wrong_setting_of_the_log(front: Front, tools: KafkaTools) -> None:
    def altered(setting: str) -> str:
        return (
            f"kafka-configs.sh --bootstrap-server {front.cluster.broker(1).address} --alter --entity-type topics"
            f" --entity-name {TOPIC} --add-config {setting}"
        )

    def type_in(command: str) -> None:
        tools(*shlex.split(command))

    type_in(altered("cleanup.policy=delete"))
    (found,) = eventually(lambda: bad(front))
    assert f"{TOPIC} has cleanup.policy=delete" in found.what
    type_in(found.todo)
    eventually(lambda: not bad(front))


def healthy(**settings: str) -> Topic:
    usual = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "min.insync.replicas": "2",
        "unclean.leader.election.enable": "false",
    }
    return Topic(
        usual | {k.replace("_", "."): v for k, v in settings.items()}, dict.fromkeys(range(PARTITIONS), (3, 3))
    )


@pytest.mark.parametrize(
    ("topic", "leaders", "what", "todo"),
    [
        (
            healthy(compression_type="gzip"),
            range(50),
            "which no instance can load",
            "--add-config compression.type=producer",
        ),
        (healthy(unclean_leader_election_enable="true"), range(50), "lacks acknowledged commits", "enable=false"),
        (
            healthy(min_insync_replicas="1"),
            range(50),
            "acknowledged as soon as one broker has it",
            "min.insync.replicas=2",
        ),
        (healthy(min_insync_replicas="3"), range(50), "one dead broker stops commits", "min.insync.replicas=2"),
        (healthy(), range(12), "has no partitions 12-49", "--alter --topic __kafka_coord_groups --partitions 50"),
        (healthy(), range(60), "has 60 partitions; only the first 50 are used", "nothing"),
        (
            Topic(healthy().settings, {0: (1, 1)}),
            range(50),
            "partitions with only 1 replica;",
            "kafka-reassign-partitions.sh",
        ),
        (
            Topic(healthy().settings, {0: (3, 2)}),
            range(50),
            "out-of-sync replicas in partition 0",
            "start the brokers that are down",
        ),
    ],
)
def test_each_problem_of_the_groups_log_is_reported_with_a_remedy(
    topic: Topic, leaders: range, what: str, todo: str
) -> None:
    (found,) = check_topic(topic, InstanceDirectory({}, dict.fromkeys(leaders, 1)), 3, "broker1:9092")
    assert what in found.what
    assert todo in found.todo


def test_partitions_without_a_leader_are_reported() -> None:
    leaders = dict.fromkeys(range(50), 1) | {7: -1}
    (found,) = check_topic(healthy(), InstanceDirectory({}, leaders), 3, "broker1:9092")
    assert "__kafka_coord_groups has no live leader for partition 7" in found.what


def test_a_group_with_members_in_both_coordinators_is_reported(front: Front) -> None:
    name = "in-both"
    TopicAdmin(front.cluster.bootstrap_servers).create(name, 1, replication=1)
    here = Consumer({"bootstrap.servers": front.bootstrap, "group.id": name})
    here.commit(offsets=[TopicPartition(name, 0, 1)], asynchronous=False)
    here.close()
    there = Consumer({"bootstrap.servers": front.cluster.bootstrap_servers, "group.id": name})
    there.subscribe([name])
    eventually(lambda: there.poll(0.05) or there.assignment())
    (found,) = bad(front)
    assert found.what == "group in-both has 1 member in the brokers' own coordinator, but is client-assigned here"
    assert "stop the clients whose bootstrap.servers lists brokers" in found.todo
    there.close()
    assert not bad(front)
