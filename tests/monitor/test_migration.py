"""Tests what the doctor says while a real cluster migrates from ZooKeeper to KRaft."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kafka_coord import Consumer
from kafka_coord.dev.bench.waiting import awaited
from kafka_coord.dev.cluster.coordinator import Coordinator
from kafka_coord.dev.cluster.kafka_znodes import topic_value
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.monitor.doctor.findings import Severity
from kafka_coord.monitor.doctor.instances import check_brokers
from kafka_coord.zk import brokers, layout
from kafka_coord.zk.brokers import Migration, read_migration
from kafka_coord.zk.root import ClusterRecord, Source, read_cluster_record
from kafka_coord.zk.store import GetData, Store
from tests.migrating import KraftController, MigratingBroker
from tests.monitor.written import Tree, opened
from tests.simulation.server import SimulatedZooKeeper
from tests.simulation.store import connected_store

WITHIN_S = 60.0


def said(store: Store) -> dict[Severity, str]:
    return {one.severity: one.what for one in check_brokers(store)}


def test_the_doctor_tells_whether_brokers_are_left_and_whether_the_migration_is_finalised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = SimulatedZooKeeper()
    tree = Tree(connected_store(server))  # type: ignore[arg-type]
    tree.value("/controller", {"version": 2, "brokerid": 3000, "kraftControllerEpoch": 1})
    tree.put("/brokers/topics/flights", topic_value(2))
    tree.put("/brokers/ids/2")
    tree.store.ensure_path("/consumers")
    record = ClusterRecord("tree", 1, Source.BROKERS, 1, "a KRaft controller is active")
    tree.store.create(layout.CLUSTER, record.to_bytes())
    reader = connected_store(server)
    tree.put(f"{layout.MIRRORED_TOPICS}/flights", topic_value(2))

    def told() -> str:
        return next(f"{one.what}: {one.todo}" for one in check_brokers(reader) if one.check == "migration")

    assert "brokers in ZooKeeper mode: 2;" in told()
    assert "restart the brokers in KRaft mode" in told()
    tree.store.delete("/brokers/ids/2")
    assert "every broker is in KRaft mode" in told()
    assert "finalise, if not done yet" in told()
    tree.put(f"{layout.MIRRORED_TOPICS}/flights", topic_value(3))
    assert "every broker is in KRaft mode" in told(), "the controller may be about to write the partition"
    monkeypatch.setattr(brokers, "_WRITTEN_WITHIN_MS", -(10**15))
    assert "is finalised: Kafka's own znodes do not follow (topic flights)" in told()
    tree.store.delete("/controller")
    assert told().startswith("the metadata comes from the brokers")
    tree.put("/brokers/ids/2")
    assert "the brokers are in ZooKeeper mode" in told()
    assert "coordinator metadata zookeeper" in told(), "the migration was rolled back"


@pytest.mark.long
@pytest.mark.zookeeper
@pytest.mark.kafka
def test_the_doctor_knows_each_phase_of_a_migration(tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path / "zookeeper") as zookeeper:
        broker = MigratingBroker(tmp_path / "kafka", 1, zookeeper.connect_string)
        with broker, opened(zookeeper.connect_string) as store:
            assert read_migration(store) is Migration.NONE
            assert set(said(store)) == {Severity.OK}
            (known,) = store.read_many([GetData("/cluster/id")])
            cluster_id = json.loads(known.data)["id"]
            connect = zookeeper.connect_string
            with KraftController(tmp_path / "controller", connect, cluster_id) as controller:
                waits(lambda: read_migration(store) is Migration.PREPARED, "the preparation")
                assert "migration to KRaft is prepared" in said(store)[Severity.INFO]
                broker.stop()
                broker.controller = controller
                broker.start()
                waits(lambda: read_migration(store) is Migration.RUNNING, "the copy")
                assert said(store)[Severity.WARNING].startswith("Kafka migrates its metadata to KRaft")
                broker.stop()
                broker.kraft = True
                broker.start()
                assert "all of them run in KRaft mode" in said(store)[Severity.ERROR]


@pytest.mark.long
@pytest.mark.zookeeper
@pytest.mark.kafka
def test_members_read_on_while_their_cluster_migrates(tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path / "zookeeper") as zookeeper:
        broker = MigratingBroker(tmp_path / "kafka", 1, zookeeper.connect_string)
        with broker, opened(zookeeper.connect_string) as store:
            topics = TopicAdmin(broker.address)
            topics.create("flights", 2)
            cluster_id = json.loads(store.get("/cluster/id").data)["id"]
            instance = Coordinator(tmp_path, broker)
            instance.start()
            controller = KraftController(tmp_path / "controller", zookeeper.connect_string, cluster_id)
            try:
                with Consumer(zookeeper.connect_string, group="own", topics=["flights"]) as consumer:
                    waits(lambda: len(consumer.assignment()) == 2, "the assignment")
                    registered = store.get(layout.registration("own", consumer.consumer_id)).stat.czxid
                    generation = store.get(layout.assignment("own")).stat.version
                    passes_on(broker.address, consumer, "before")
                    controller.start()
                    waits(lambda: comes_from_the_brokers(store), "the change of source")
                    assert f"{layout.MIGRATION} exists" in str(read_cluster_record(store))
                    passes_on(broker.address, consumer, "prepared")
                    broker.stop()
                    broker.controller = controller
                    broker.start()
                    waits(lambda: read_migration(store) is Migration.RUNNING, "the copy")
                    passes_on(broker.address, consumer, "copied")
                    assert "restart the brokers in KRaft mode" in str(list(check_brokers(store)))
                    broker.stop()
                    broker.kraft = True
                    broker.start()
                    passes_on(broker.address, consumer, "KRaft")
                    controller.stop()
                    controller.zookeeper = ""
                    controller.start()
                    assert store.get(layout.assignment("own")).stat.version == generation
                    topics.add_partitions("flights", 3)
                    waits(lambda: len(consumer.assignment()) == 3, "the new partition")
                    passes_on(broker.address, consumer, "finalised", partition=2)
                    topics.create("new", 1)
                    waits(lambda: "new" in store.children(layout.BROKER_TOPICS), "the new topic")
                    assert "new" not in store.children(layout.kafkas_own(layout.BROKER_TOPICS))
                    czxid = store.get(layout.registration("own", consumer.consumer_id)).stat.czxid
                    assert czxid == registered
            finally:
                instance.stop()
                print(instance.process.log.read_text()[-6000:])  # noqa: T201 - shown if the test failed
                controller.kill()


def comes_from_the_brokers(store: Store) -> bool:
    record = read_cluster_record(store)
    return record is not None and record.source is Source.BROKERS


def passes_on(address: str, consumer: Consumer[bytes, bytes], value: str, partition: int = 0) -> None:
    """Produces a record, and waits until the consumer has read it, next after those before it."""
    producer = Producer({"bootstrap.servers": address})
    producer.produce("flights", value, partition=partition)
    assert producer.flush(WITHIN_S) == 0
    found: list[bytes | None] = []

    def has_come() -> bool:
        record = consumer.poll(0.5)
        found.extend([record.value] if record is not None else [])
        return bool(found)

    waits(has_come, f"the record {value}")
    assert found == [value.encode()]


def waits(condition: Callable[[], bool], what: str) -> None:
    awaited(condition, WITHIN_S, what, every_s=0.2)
