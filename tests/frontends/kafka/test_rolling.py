"""Introduces and removes the listener while a stock consumer runs, by the steps of docs/operations.md."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kafka_coord.dev.cluster.kafka import Broker, KafkaCluster
from kafka_coord.dev.cluster.ports import free_port
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.errors import NodeExists
from kafka_coord.frontends.kafka.listener import KafkaListener
from kafka_coord.grouplog.term import PARTITIONS, TOPIC
from kafka_coord.model import GroupKind
from kafka_coord.zk import connect, layout
from kafka_coord.zk.brokers import read_brokers
from kafka_coord.zk.instance import InstanceRegistration
from kafka_coord.zk.kinds import read_kinds
from kafka_coord.zk.store import Store
from tests.cli.running import run
from tests.frontends.kafka.conftest import LIMITS
from tests.frontends.kafka.feeding import Feed, Reader
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
GROUP, TOPIC_READ, PARTS = "rolled", "rolled", 3
_STARTED_S = 180.0
PATIENT = {"session.timeout.ms": 240_000}
"""A broker that coordinates the group may be away for a restart."""
SETTINGS = ("listeners", "advertised.listeners", "listener.security.protocol.map")


def alter(cluster: KafkaCluster, broker_id: int, values: dict[str, str | None]) -> None:
    """Changes settings of a running broker, as ``kafka-configs.sh --entity-type brokers --alter`` does."""
    entries = [
        ConfigEntry(
            name,
            value,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for name, value in values.items()
    ]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    resource = ConfigResource(ResourceType.BROKER, str(broker_id), incremental_configs=entries)
    (done,) = admin.incremental_alter_configs([resource]).values()
    done.result(30)


@pytest.fixture
def store(kafka_cluster: KafkaCluster) -> Iterator[Store]:
    store = connect(kafka_cluster.zookeeper)
    yield store
    store.close()


@pytest.fixture
def feed(kafka_cluster: KafkaCluster) -> Iterator[Feed]:
    TopicAdmin(kafka_cluster.bootstrap_servers).create(TOPIC_READ, PARTS)
    with Feed(kafka_cluster.bootstrap_servers, TOPIC_READ, PARTS).running() as feed:
        yield feed
    TopicAdmin(kafka_cluster.bootstrap_servers).delete(TOPIC_READ)


def restart(broker: Broker, addresses: tuple[str, str] | None) -> None:
    """Restarts a broker with the second listener at these addresses, or without it: in KRaft mode, listeners stand in
    ``server.properties`` alone."""
    broker.settings = dataclasses.replace(broker.settings, for_instances=addresses is not None)
    if addresses is not None:
        broker.instance_port, broker.listener_port = (int(one.rpartition(":")[2]) for one in addresses)
    broker.stop()
    broker.start(_STARTED_S)


@contextlib.contextmanager
def listener_for_instances(cluster: KafkaCluster) -> Iterator[dict[int, tuple[str, str]]]:
    """Step 1: adds the second listener to every broker, while it runs if it can. Returns the addresses of instance and
    broker, by broker id."""
    addresses = {
        broker.broker_id: (f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}") for broker in cluster.brokers
    }
    before = {broker.broker_id: (broker.instance_address, broker.listener_address) for broker in cluster.brokers}
    had_one, kraft = cluster.brokers[0].settings.for_instances, cluster.brokers[0].settings.kraft
    for broker in cluster.brokers:
        instance, behind = addresses[broker.broker_id]
        values = (
            f"PLAINTEXT://{broker.address},COORD://{behind}",
            f"PLAINTEXT://{broker.address},COORD://{instance}",
            "PLAINTEXT:PLAINTEXT,COORD:PLAINTEXT",
        )
        if kraft:
            restart(broker, addresses[broker.broker_id])
        else:
            alter(cluster, broker.broker_id, dict(zip(SETTINGS, values, strict=True)))
    try:
        yield addresses
    finally:
        for broker in cluster.brokers:
            if kraft:
                restart(broker, before[broker.broker_id] if had_one else None)
            else:
                alter(cluster, broker.broker_id, dict.fromkeys(SETTINGS))


def _is_registered(registration: InstanceRegistration) -> bool:
    """Tries to register an instance, and returns whether it succeeded. The session of an earlier test's instance with
    the same id may still exist."""
    with contextlib.suppress(NodeExists):
        registration.register()
        return True
    return False


@contextlib.contextmanager
def instances(cluster: KafkaCluster, store: Store, addresses: dict[int, tuple[str, str]]) -> Iterator[str]:
    """Step 2: starts an instance beside each broker. Together they serve all groups. Returns their addresses."""
    store.ensure_path(layout.COORDINATORS)
    listeners = {
        number: KafkaListener(at, behind, store, number, group_limits=LIMITS)
        for number, (at, behind) in addresses.items()
    }
    registered = [
        InstanceRegistration(store, number, {"kafka": one.address}, lambda: None) for number, one in listeners.items()
    ]
    try:
        for one in registered:
            eventually(partial(_is_registered, one))
        eventually(lambda: sum(len(one.manager.terms) for one in listeners.values()) == PARTITIONS, within_s=60)
        yield ",".join(one.address for one in listeners.values())
    finally:
        for one in registered:
            one.unregister()
        for listener in listeners.values():
            listener.close()
        TopicAdmin(cluster.bootstrap_servers).delete(TOPIC)


@pytest.mark.timeout(900)
def test_a_group_is_taken_over_and_given_back_while_its_consumer_runs_and_no_record_is_missed(
    kafka_cluster: KafkaCluster, store: Store, feed: Feed
) -> None:
    cluster, found = kafka_cluster, list[int]()
    coord = ("--zookeeper", cluster.zookeeper)
    with contextlib.ExitStack() as rolled_in:
        before = Reader(cluster.bootstrap_servers, GROUP, TOPIC_READ, found, PATIENT)
        with before.reading():
            addresses = rolled_in.enter_context(listener_for_instances(cluster))
            servers = rolled_in.enter_context(instances(cluster, store, addresses))
            before.goes_on()
            seen = read_brokers(store)
            assert seen is not None
            assert {broker.listeners[0].name for broker in seen.live} == {"PLAINTEXT"}, "consumers use the first one"
            assert before.assigned == 1, "the new listener caused a rebalance"
        through = Reader(servers, GROUP, TOPIC_READ, found)
        with through.reading():  # step 3: the brokers still coordinate it
            for verb, recorded in ("take-over", GroupKind.CLIENT_ASSIGNED), ("give-back", GroupKind.NATIVE):
                assert read_kinds(store, [GROUP])[GROUP].kind is not recorded
                eventually(lambda verb=verb: run("groups", verb, GROUP, "--execute", *coord).code == 0, within_s=60)  # type: ignore[misc]
                assert read_kinds(store, [GROUP])[GROUP].kind is recorded
                through.goes_on()
            eventually(lambda: not read_kinds(store, [GROUP])[GROUP].fenced)
        after = Reader(cluster.bootstrap_servers, GROUP, TOPIC_READ, found, PATIENT)
        with after.reading():
            rolled_in.close()
            after.goes_on()
            assert after.assigned == 1, "the removal of the listener caused a rebalance"
            feed.stopping.set()
            eventually(lambda: len(set(found)) >= feed.produced, within_s=30)  # partitions are read at different speeds
    assert sorted(set(found)) == list(range(max(found) + 1)), "records were missed"
