"""The coordination tree moves to another ensemble, under members of every kind (docs/operations.md, Backup and
restore)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as KafkaConsumer

from kafka_coord.dev.cluster.coordinator import Coordinator, serve_command
from kafka_coord.dev.cluster.jars import KAFKA_4, class_path
from kafka_coord.dev.cluster.kafka import KafkaSettings, KraftBroker
from kafka_coord.dev.cluster.ports import LOOPBACK, free_port
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from kafka_coord.errors import DevClusterError
from kafka_coord.groups.backup import read_file
from kafka_coord.groups.restore import plan_restore
from kafka_coord.zk import connect, layout
from tests.cli.running import run
from tests.end_to_end.parties import Numbered, Reader, expected, owners
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]

TOPIC, PARTITIONS = "flights", 4
SETTINGS = ZooKeeperSettings(tick_ms=500)


class StockReader:
    """A client of librdkafka on a thread, which records everything that it receives."""

    def __init__(self, address: str, group: str, **options: Any) -> None:
        self.given: list[tuple[int, int]] = []
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self.name = group
        earliest = {"auto.offset.reset": "earliest", "auto.commit.interval.ms": 500}
        self._consumer = KafkaConsumer({"bootstrap.servers": address, "group.id": group, **earliest, **options})
        self._thread = threading.Thread(target=self._run, name=f"reader-{group}", daemon=True)

    def start(self) -> StockReader:
        self._thread.start()
        return self

    def end(self) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        self._consumer.subscribe([TOPIC])
        while not self._stop.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.given.append((message.partition(), message.offset()))
        self._consumer.close()


class Site:
    """A KRaft broker, the ZooKeeper of the coordination alone, and an instance that listens to members of all kinds."""

    def __init__(self, directory: Path, parts: ExitStack) -> None:
        self.directory, self._parts = directory, parts
        self.zookeeper = ZooKeeperServer(directory / "old", settings=SETTINGS)
        self.hosts = self.zookeeper.connect_string
        self._serve(self.zookeeper)
        self.broker = KraftBroker(directory, 1, self.hosts, settings=KafkaSettings(for_instances=True, heap_mb=512))
        self.broker.start()
        parts.callback(self.broker.kill)
        self.channel = f"{LOOPBACK}:{free_port()}"
        command = [*serve_command(self.broker), "--listen-channel", self.channel]
        self.instance = Coordinator(directory, self.broker, lambda _broker: command)
        parts.callback(self.instance.stop)
        self.instance.start()

    def _serve(self, server: ZooKeeperServer) -> ZooKeeperServer:
        server.start()
        self._parts.callback(server.kill)
        return server

    def move(self, file: Path) -> None:
        """Does what docs/operations.md says. The new server has the address of the old one, as a new name in DNS
        would."""
        self.instance.stop()
        self.zookeeper.stop()
        alone = self._serve(ZooKeeperServer(self.zookeeper.directory, port=free_port(), settings=SETTINGS))
        made = run("backup", str(file), zookeeper=alone.connect_string)
        assert made.code == 0, made.err
        alone.stop()
        new = self._serve(ZooKeeperServer(self.directory / "new", port=self.zookeeper.port, settings=SETTINGS))
        kafka = ("--bootstrap", self.broker.address)
        restored = run("restore", str(file), "--execute", "--stopped", *kafka, zookeeper=new.connect_string)
        assert restored.code == 0, restored.err
        assert "not every offset was compared" not in restored.err
        self.instance.start()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    try:
        class_path(KAFKA_4)
    except DevClusterError as error:
        pytest.skip(f"no Kafka 4.3: {error}")
    with ExitStack() as parts:
        yield Site(tmp_path, parts)


@pytest.mark.timeout(600)
def test_members_of_every_kind_read_on_when_the_tree_moves(site: Site, tmp_path: Path) -> None:
    TopicAdmin(site.broker.address).create(TOPIC, PARTITIONS, replication=1)
    own = [Reader(site.hosts, "own", TOPIC, name, topics=[TOPIC]) for name in ("r1", "r2")]
    socket = [Reader(None, "socket", TOPIC, name, bootstrap=site.channel) for name in ("r1", "r2")]
    classic = StockReader(site.broker.instance_address, "classic")
    modern = StockReader(site.broker.instance_address, "modern", **{"group.protocol": "consumer"})
    producer = Numbered(site.broker.address, TOPIC, PARTITIONS, per_second=200)
    parties = {"own": own, "socket": socket, "classic": [classic], "modern": [modern]}
    file = tmp_path / "kafka-coord.backup"
    for readers in parties.values():
        for one in readers:
            one.start()
    try:
        producer.start()
        eventually(lambda: [*owners(own), *owners(socket)] == [2] * 4, within_s=60)
        eventually(lambda: len(classic.given) > 100 and len(modern.given) > 100, within_s=60)
        with closing(connect(site.hosts)) as store:
            managed = [
                layout.offset(group, TOPIC, n) for group in ("own", "socket", "modern") for n in range(PARTITIONS)
            ]
            eventually(lambda: all(store.exists_many(managed)), within_s=60)

        site.move(file)

        eventually(lambda: [*owners(own), *owners(socket)] == [2] * 4, within_s=90)
        so_far = len(modern.given)
        eventually(lambda: len(modern.given) > so_far + 100, within_s=90)
        written = producer.stop()
        for readers in parties.values():
            eventually(lambda them=readers: expected(written) <= _given(them).keys(), within_s=90, every_s=0.2)
    finally:
        producer.stop()
        for readers in parties.values():
            for one in readers:
                one.end()
    backup, checksum = read_file(file)
    assert backup.header.is_still
    committed = {one.group: one.offsets for one in plan_restore(backup, checksum).groups}
    for group, readers in parties.items():
        given = _given(readers)
        assert given.keys() == expected(written), f"{group} lost or skipped records"
        twice = {tp for tp, times in given.items() if times > 1}
        if group in committed:
            before = {tp.partition: offset for tp, offset in committed[group].items()}
            assert not [one for one in twice if one[1] < before[one[0]]], f"{group} read again what was committed"


def _given(readers: list[Any]) -> Counter[tuple[int, int]]:
    return Counter(record for reader in readers for record in list(reader.given))
