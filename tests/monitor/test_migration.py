"""Tests what the doctor says while a real cluster migrates from ZooKeeper to KRaft."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kafka_coord import Consumer
from kafka_coord.dev.bench.waiting import awaited
from kafka_coord.dev.cluster.coordinator import Coordinator
from kafka_coord.dev.cluster.jars import KAFKA, class_path
from kafka_coord.dev.cluster.kafka import KafkaBroker, KafkaSettings
from kafka_coord.dev.cluster.ports import LOOPBACK, port_is_free
from kafka_coord.dev.cluster.server import JvmProgram, JvmServer
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.monitor.doctor.findings import Severity
from kafka_coord.monitor.doctor.instances import check_brokers
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import Migration, read_migration
from kafka_coord.zk.root import Source, read_cluster_record
from kafka_coord.zk.store import GetData, Store
from tests.monitor.written import opened

pytestmark = [pytest.mark.long, pytest.mark.zookeeper, pytest.mark.kafka]

CONTROLLER_ID = 3000
WITHIN_S = 60.0


class Controller(JvmServer):
    """A KRaft controller that migrates the cluster in ``zookeeper``."""

    def __init__(self, directory: Path, zookeeper: str, cluster_id: str, port: int | None = None) -> None:
        super().__init__("controller", directory, port=port, log_level="WARN")
        self._zookeeper, self._cluster_id = zookeeper, cluster_id

    @property
    def quorum(self) -> dict[str, str]:
        """The properties with which a broker finds the controller."""
        return {
            "controller.quorum.voters": f"{CONTROLLER_ID}@{LOOPBACK}:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "zookeeper.connect": self._zookeeper,
            "zookeeper.metadata.migration.enable": "true",
        }

    def serving(self) -> bool:
        return not port_is_free(self.port)

    def _prepare(self) -> JvmProgram:
        config = self.directory / "controller.properties"
        lines = self.quorum | {
            "process.roles": "controller",
            "node.id": str(CONTROLLER_ID),
            "listeners": f"CONTROLLER://{LOOPBACK}:{self.port}",
            "log.dirs": str(self.directory / "data"),
        }
        config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), "utf-8")
        data = self.directory / "data"
        data.mkdir(exist_ok=True)
        # what Kafka's StorageTool would write
        if self._cluster_id:
            (data / "meta.properties").write_text(
                f"version=1\ncluster.id={self._cluster_id}\nnode.id={CONTROLLER_ID}\n", "ascii"
            )
        return JvmProgram(("-Xms64m", "-Xmx256m"), class_path(KAFKA), "kafka.Kafka", [str(config)])


class KraftBroker(KafkaBroker):
    """The same broker, restarted in KRaft mode."""

    def _configuration(self) -> dict[str, str]:
        lines = super()._configuration()
        for name in ("broker.id", *(name for name in lines if name.startswith("zookeeper."))):
            lines.pop(name)
        return lines | {"process.roles": "broker", "node.id": str(self.broker_id)}

    def sees(self, broker_ids: set[int]) -> bool:
        view = self.view()
        return view is not None and broker_ids <= view.brokers.keys()


def said(store: Store) -> dict[Severity, str]:
    return {one.severity: one.what for one in check_brokers(store)}


def test_the_doctor_knows_each_phase_of_a_migration(tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path / "zookeeper") as zookeeper:
        broker = KafkaBroker(tmp_path / "kafka", 1, zookeeper.connect_string, settings=KafkaSettings())
        with broker, opened(zookeeper.connect_string) as store:
            assert read_migration(store) is Migration.NONE
            assert set(said(store)) == {Severity.OK}
            (known,) = store.read_many([GetData("/cluster/id")])
            with Controller(
                tmp_path / "controller", zookeeper.connect_string, json.loads(known.data)["id"]
            ) as controller:
                waits(lambda: read_migration(store) is Migration.PREPARED, "the preparation")
                assert "migration to KRaft is prepared" in said(store)[Severity.INFO]
                broker.stop()
                broker.settings = replace(broker.settings, properties=controller.quorum)
                broker.start()
                waits(lambda: read_migration(store) is Migration.RUNNING, "the copy")
                assert said(store)[Severity.WARNING].startswith("Kafka migrates its metadata to KRaft")
                broker.stop()
                port = broker.port
                with KraftBroker(tmp_path / "kafka", 1, zookeeper.connect_string, port=port, settings=broker.settings):
                    assert "all of them run in KRaft mode" in said(store)[Severity.ERROR]


class FinalController(Controller):
    """The same controller, once the migration is finalised."""

    @property
    def quorum(self) -> dict[str, str]:
        lines = super().quorum
        return {name: lines[name] for name in lines if not name.startswith("zookeeper.")}


def test_members_read_on_while_their_cluster_migrates(tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path / "zookeeper") as zookeeper:
        broker = KafkaBroker(tmp_path / "kafka", 1, zookeeper.connect_string, settings=KafkaSettings())
        with broker, opened(zookeeper.connect_string) as store:
            topics = TopicAdmin(broker.address)
            topics.create("flights", 2)
            cluster_id = json.loads(store.get("/cluster/id").data)["id"]
            instance = Coordinator(tmp_path, broker)
            instance.start()
            controller = Controller(tmp_path / "controller", zookeeper.connect_string, cluster_id)
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
                    broker.settings = replace(broker.settings, properties=controller.quorum)
                    broker.start()
                    waits(lambda: read_migration(store) is Migration.RUNNING, "the copy")
                    passes_on(broker.address, consumer, "copied")
                    assert "restart the brokers in KRaft mode" in str(list(check_brokers(store)))
                    broker.stop()
                    after = KraftBroker(
                        tmp_path / "kafka", 1, zookeeper.connect_string, port=broker.port, settings=broker.settings
                    )
                    with after:
                        passes_on(broker.address, consumer, "KRaft")
                        controller.stop()
                        final = FinalController(tmp_path / "controller", zookeeper.connect_string, "", controller.port)
                        with final:
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
