"""Tests with brokers without a listener for instances: the instances replace the addresses in the brokers' answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kafka_coord.dev.cluster.ports import free_port
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.frontends.kafka.listener import KafkaListener
from kafka_coord.grouplog.term import PARTITIONS
from kafka_coord.model import CoordinatorInfo
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from tests.frontends.kafka.conftest import LIMITS, Front
from tests.frontends.kafka.peer import Peer
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
TOPIC = "rewritten"


@pytest.fixture(scope="module")
def rewriting(front: Front) -> Iterator[dict[int, KafkaListener]]:
    """Runs instances in front of the brokers' ordinary listeners. Each publishes its address in ZooKeeper, like
    ``serve``."""
    for broker_id in list(front.listeners):
        front.stop(broker_id)
    made: dict[int, KafkaListener] = {}
    front.store.ensure_path(layout.COORDINATORS)
    try:
        for broker in front.cluster.brokers:
            at = f"127.0.0.1:{free_port()}"
            where = layout.instance(broker.broker_id)
            info = CoordinatorInfo(broker.broker_id, 0, "0", {"kafka": at})
            front.store.create(where, fields.dump(info.to_json()))
            made[broker.broker_id] = KafkaListener(
                at, broker.address, front.store, broker.broker_id, group_limits=LIMITS, rewrite=True
            )
        eventually(lambda: sum(len(one.manager.terms) for one in made.values()) == PARTITIONS, within_s=60)
        eventually(lambda: all(len(one.registered.addresses) == len(made) for one in made.values()))
        yield made
    finally:
        for broker_id, listener in made.items():
            listener.close()
            front.store.delete(layout.instance(broker_id))
        for broker in front.cluster.brokers:
            front.start(broker.broker_id)
        eventually(front.serves_every_group, within_s=60)


def test_a_stock_client_sees_only_the_instances_addresses(front: Front, rewriting: dict[int, KafkaListener]) -> None:
    instances = {broker_id: listener.address for broker_id, listener in rewriting.items()}
    bootstrap = {"bootstrap.servers": instances[1]}
    TopicAdmin(front.cluster.bootstrap_servers).create(TOPIC, 6, replication=3)
    producer = Producer(bootstrap | {"enable.idempotence": True})
    for number in range(600):
        producer.produce(TOPIC, str(number), str(number))
    assert producer.flush(60) == 0
    seen = {one.id: f"{one.host}:{one.port}" for one in producer.list_topics(timeout=20).brokers.values()}
    assert seen == instances
    admin = AdminClient(bootstrap)
    cluster = admin.describe_cluster().result(20)
    assert {one.id: f"{one.host}:{one.port}" for one in cluster.nodes} == instances

    one = Consumer(bootstrap | {"group.id": "rewritten", "auto.offset.reset": "earliest", "enable.auto.commit": False})
    one.subscribe([TOPIC])
    found: set[bytes] = set()
    eventually(lambda: found.update(m.value() for m in one.consume(500, 0.1) if not m.error()) or len(found) == 600)
    one.commit(asynchronous=False)
    committed = one.committed([TopicPartition(TOPIC, number) for number in range(6)], 30)
    assert sum(each.offset for each in committed) == 600
    one.close()
    transactional = Producer(bootstrap | {"transactional.id": "rewritten"})
    transactional.init_transactions(60)
    transactional.begin_transaction()
    transactional.produce(TOPIC, b"x", b"y")
    transactional.commit_transaction(60)


def test_versions_with_addresses_in_other_fields_are_not_advertised(
    rewriting: dict[int, KafkaListener], front: Front
) -> None:
    with Peer(rewriting[1]) as peer:
        ranges = {one.api_key: one.max_version for one in peer.ask("ApiVersions", 0).api_keys}
    of_kafka_4 = front.cluster.brokers[0].settings.kraft
    assert (ranges[0], ranges[1], ranges[3]) == ((13, 15, 13) if of_kafka_4 else (11, 15, 12))


def test_metadata_omits_a_broker_without_an_instance(front: Front, rewriting: dict[int, KafkaListener]) -> None:
    where = layout.instance(3)
    value = front.store.get(where).data
    front.store.delete(where)
    try:
        with Peer(rewriting[1]) as peer:
            eventually(lambda: {one.node_id for one in peer.ask("Metadata", 4, topics=()).brokers} == {1, 2})
    finally:
        front.store.create(where, value)
