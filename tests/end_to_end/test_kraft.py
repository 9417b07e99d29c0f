"""Beside Kafka 4.3 in KRaft mode: ZooKeeper belongs to the coordination alone, and members of every kind read."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer, TopicPartition

from kafka_coord import Consumer
from kafka_coord.dev.cluster.coordinator import Coordinator, serve_command
from kafka_coord.dev.cluster.jars import KAFKA_4, class_path
from kafka_coord.dev.cluster.kafka import KafkaSettings, KraftBroker
from kafka_coord.dev.cluster.ports import LOOPBACK, free_port
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.errors import DevClusterError
from kafka_coord.grouplog.trees import EPOCH_MARGIN
from kafka_coord.zk import layout
from kafka_coord.zk.root import ClusterRecord, Source
from kafka_coord.zk.session import connect
from tests.cli.running import run as cli
from tests.waiting import delete_all, eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]


@pytest.fixture(scope="module")
def kraft(tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperServer) -> Iterator[KraftBroker]:
    where = tmp_path_factory.mktemp("kraft")
    chroot = f"/kraft-{uuid.uuid4().hex[:8]}"
    with closing(connect(zookeeper.connect_string)) as store:
        store.create(chroot)
    settings = KafkaSettings(for_instances=True, heap_mb=512)
    broker = KraftBroker(where, 1, f"{zookeeper.connect_string}{chroot}", settings=settings)
    try:
        class_path(KAFKA_4)
    except DevClusterError as error:
        pytest.skip(f"no Kafka 4.3: {error}")
    with broker:
        yield broker
        broker.kill()  # a clean stop takes seconds


@pytest.fixture(scope="module")
def channel(kraft: KraftBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    address = f"{LOOPBACK}:{free_port()}"
    instance = Coordinator(
        tmp_path_factory.mktemp("instance"),
        kraft,
        lambda broker: [*serve_command(broker), "--listen-channel", address],
    )
    instance.start()
    yield address
    print(Path(instance.process.log).read_text()[-4000:])  # noqa: T201 - shown if a test failed
    instance.stop()


def produce(address: str, topic: str, values: list[str], partition: int = -1) -> None:
    producer = Producer({"bootstrap.servers": address})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0


def read_all(consumer: KafkaConsumer, many: int) -> list[str]:
    found: list[str] = []

    def enough() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value().decode())
        return len(found) >= many

    eventually(enough, within_s=60, every_s=0)
    return sorted(found)


def test_members_of_every_kind_read_beside_kafka_4(kraft: KraftBroker, channel: str) -> None:
    admin = TopicAdmin(kraft.address)
    admin.create("flights", 2, replication=1)
    with closing(connect(kraft.zookeeper)) as store:
        eventually(lambda: "flights" in store.children(layout.BROKER_TOPICS))
        record = ClusterRecord.from_znode(store.get(layout.CLUSTER).data)
        assert record.source is Source.BROKERS
        assert store.exists(layout.kafkas_own("/brokers")) is None
    values = [f"v{number}" for number in range(20)]
    earliest = {"auto.offset.reset": "earliest", "bootstrap.servers": kraft.instance_address}
    own = Consumer(kraft.zookeeper, group="own", topics=["flights"], auto_offset_reset="earliest")
    by_socket = Consumer(bootstrap=channel, group="socket", topics=["flights"], auto_offset_reset="earliest")
    classic = KafkaConsumer(earliest | {"group.id": "classic"})
    modern = KafkaConsumer(earliest | {"group.id": "modern", "group.protocol": "consumer"})
    classic.subscribe(["flights"])
    modern.subscribe(["flights"])
    with own, by_socket:
        produce(kraft.address, "flights", values)
        for consumer in (own, by_socket):
            found: list[str] = []
            for record_read in consumer:
                found.append((record_read.value or b"").decode())
                if len(found) == len(values):
                    break
            assert sorted(found) == sorted(values)
        assert read_all(classic, 20) == sorted(values)
        assert read_all(modern, 20) == sorted(values)
        with closing(connect(kraft.zookeeper)) as store:
            signals = store.get(layout.CHANGED).stat.version
            TopicAdmin(kraft.instance_address).add_partitions("flights", 3)
            eventually(lambda: store.get(layout.CHANGED).stat.version > signals)
        eventually(lambda: any(tp.partition == 2 for tp in own.assignment()), within_s=10)
        produce(kraft.address, "flights", ["new"], partition=2)
        assert next(iter(own)).value == b"new"
        assert read_all(modern, 1) == ["new"]
    classic.close()
    modern.close()


def test_an_offset_of_a_topic_that_was_just_created_is_stored_at_once(kraft: KraftBroker, channel: str) -> None:
    """The request that creates it passes no instance, so the mirror lacks it for up to a second."""
    admin, offset = TopicAdmin(kraft.address), 5
    admin.create("before", 1, replication=1)
    with closing(Consumer(bootstrap=channel, group="young-managed", topics=["before"])) as member:
        eventually(member.assignment, within_s=30)
    for number, group in enumerate(("young", "young", "young-managed", "young-managed")):
        topic = f"young-{number}"
        settings = {"bootstrap.servers": kraft.instance_address, "group.id": group, "enable.auto.commit": False}
        consumer = KafkaConsumer(settings)
        consumer.committed([TopicPartition("before", 0)], timeout=30)  # it knows the coordinator
        admin.create(topic, 1, replication=1)
        at_once = time.monotonic()
        (committed,) = consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        assert (committed.error, time.monotonic() - at_once < 10) == (None, True)
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=30)
        assert found.offset == offset
        consumer.close()
    reset = "groups", "reset-offsets", "young", "--to-earliest", "--topic", "young-reset", "-z", kraft.zookeeper
    admin.create("young-reset", 1, replication=1)
    done = cli(*reset)
    assert done.code == 0, done.err


def test_a_lost_tree_is_replaced_only_by_name_and_the_groups_log_goes_on(
    kraft: KraftBroker, tmp_path: Path, channel: str
) -> None:
    """Last in this module: it ends the instance that the others use."""
    settings = {"bootstrap.servers": kraft.instance_address, "group.id": "outlives", "auto.offset.reset": "earliest"}
    TopicAdmin(kraft.address).create("kept", 1, replication=1)
    produce(kraft.address, "kept", ["a", "b"])
    before = KafkaConsumer(settings)
    before.subscribe(["kept"])
    assert read_all(before, 2) == ["a", "b"]
    before.commit(asynchronous=False)
    before.close()
    where = "-z", kraft.zookeeper, "--bootstrap", kraft.address
    with closing(connect(kraft.zookeeper)) as store:
        lost = ClusterRecord.from_znode(store.get(layout.CLUSTER).data)
        assert (lost.generation, bool(lost.kafka)) == (1, True)
        done = cli("init", *where)
        assert (done.code, f"there is {lost.name} already" in done.err) == (0, True)
        store.create("/elsewhere")
        elsewhere = "-z", f"{kraft.zookeeper}/elsewhere", "--bootstrap", kraft.address
        refused = cli("init", *elsewhere)
        assert (refused.code, f"the groups log belongs to {lost.name}" in refused.err) == (6, True)
        assert cli("init", *elsewhere, "--replace", "t9").code == 6
        delete_all(store, layout.CONSUMERS)

    instance = Coordinator(tmp_path, kraft)
    eventually(lambda: not listens(channel), within_s=30)  # it ends, because its tree is gone
    refused = cli("serve", "--broker-id", "1", *where)
    assert (refused.code, f"kafka-coord init --replace {lost.tree}" in refused.err) == (6, True), refused.err
    made = cli("init", *where, "--replace", lost.tree)
    assert made.code == 0, made.err
    assert "generation 2" in made.out
    assert "claimed 50 partitions" in made.out
    instance.start()
    with closing(connect(kraft.zookeeper)) as store:
        assert int(store.get(layout.COORDINATOR_EPOCH).data) > EPOCH_MARGIN
    produce(kraft.address, "kept", ["c"])
    after = KafkaConsumer(settings)
    after.subscribe(["kept"])
    assert read_all(after, 1) == ["c"], "the offsets in the groups log outlive the tree"
    after.close()
    audited = cli("audit", "--group-log", "-z", kraft.zookeeper)
    assert audited.code == 0, audited.out
    instance.stop()


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1.0):
            return True
    except OSError:
        return False
