"""Servers that migrate to KRaft and on to Kafka 4, and what tests need that share brokers of Kafka 4."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from kafka_coord.coordinator import mirroring
from kafka_coord.coordinator.execute import Executor
from kafka_coord.coordinator.mirror import MirroredTopic
from kafka_coord.dev.cluster.jars import KAFKA, class_path
from kafka_coord.dev.cluster.kafka import KafkaBroker, KafkaCluster
from kafka_coord.dev.cluster.ports import LOOPBACK, port_is_free
from kafka_coord.dev.cluster.server import JvmProgram, JvmServer
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.grouplog.term import TOPIC
from kafka_coord.kafka.metadata import MetadataAsker, bootstraps
from kafka_coord.model.broker import AnsweredTopic
from kafka_coord.zk import connect, layout
from kafka_coord.zk.root import ClusterRecord
from kafka_coord.zk.store import Check, GetData, Node, Store

CONTROLLER_ID = 3000


class KraftController(JvmServer):
    """A controller that is no broker. With ``zookeeper``, it migrates the cluster there. Assign another value before a
    restart: an empty ``zookeeper`` finalises the migration, and another ``release`` upgrades the controller."""

    release = KAFKA

    def __init__(self, directory: Path, zookeeper: str, cluster_id: str) -> None:
        super().__init__("controller", directory, port=None, log_level="WARN")
        self.zookeeper, self._cluster_id = zookeeper, cluster_id

    @property
    def quorum(self) -> dict[str, str]:
        """The properties with which a broker finds the controller and, with ``zookeeper``, migrates."""
        found = {
            "controller.quorum.voters": f"{CONTROLLER_ID}@{LOOPBACK}:{self.port}",
            "controller.listener.names": "CONTROLLER",
        }
        if self.zookeeper:
            found |= {"zookeeper.connect": self.zookeeper, "zookeeper.metadata.migration.enable": "true"}
        return found

    def serving(self) -> bool:
        return not port_is_free(self.port)

    def _prepare(self) -> JvmProgram:
        config, data = self.directory / "controller.properties", self.directory / "data"
        lines = self.quorum | {
            "process.roles": "controller",
            "node.id": str(CONTROLLER_ID),
            "listeners": f"CONTROLLER://{LOOPBACK}:{self.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(data),
        }
        config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), "utf-8")
        data.mkdir(exist_ok=True)
        if not (data / "meta.properties").exists():  # what Kafka's StorageTool would write
            about = f"version=1\ncluster.id={self._cluster_id}\nnode.id={CONTROLLER_ID}\n"
            (data / "meta.properties").write_text(about, "ascii")
        jars = class_path(self.release)
        return JvmProgram(("-Xms64m", "-Xmx256m"), jars, "kafka.Kafka", [str(config)])


class MigratingBroker(KafkaBroker):
    """A broker for which one of these is assigned before a restart: the ``controller`` to which it migrates, the mode,
    or another ``release``."""

    controller: KraftController | None = None
    kraft = False

    def _mode(self) -> dict[str, str]:
        if self.controller is None:
            return super()._mode()
        lines = super()._mode() | self.controller.quorum
        if not self.kraft:
            return lines
        of_zookeeper = {"broker.id", *(name for name in lines if name.startswith("zookeeper."))}
        return {name: value for name, value in lines.items() if name not in of_zookeeper} | {
            "process.roles": "broker",
            "node.id": str(self.broker_id),
        }

    def _configuration(self) -> dict[str, str]:
        lines = super()._configuration()
        protocols = lines.get("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT")
        return lines | {"listener.security.protocol.map": f"{protocols},CONTROLLER:PLAINTEXT"}


_EVERY_S = 0.2
_SHOWN_S = 60.0


@contextmanager
def mirrored(cluster: KafkaCluster) -> Iterator[None]:
    """Keeps the mirror of a cluster in KRaft mode, whoever is elected. While the block runs, a topic that a test has
    made or grown also stands in ZooKeeper when :class:`TopicAdmin` returns, as with brokers that keep it there."""
    with closing(connect(cluster.zookeeper)) as store, pytest.MonkeyPatch.context() as patched:
        store.ensure_path(layout.CLUSTER.rpartition("/")[0])
        store.create(layout.CLUSTER, ClusterRecord.new(store, 1).to_bytes())
        addresses = bootstraps(cluster.bootstrap_servers)
        options = mirroring.MetadataOptions(lambda: MetadataAsker({}), "brokers", addresses, led=TOPIC)
        patched.setattr(mirroring, "EVERY_S", _EVERY_S)
        mirror = mirroring.MetadataMirror(store, Executor(store, Check("/", -1)), options)
        mirror.thread.start()
        for name in ("create", "add_partitions"):
            patched.setattr(TopicAdmin, name, _shown(getattr(TopicAdmin, name), cluster, store))
        try:
            yield
        finally:
            mirror.thread.close()


def _shown(change: Any, cluster: KafkaCluster, store: Store) -> Any:
    @wraps(change)
    def changed(admin: TopicAdmin, topic: str, *arguments: Any, **options: Any) -> None:
        change(admin, topic, *arguments, **options)
        deadline = time.monotonic() + _SHOWN_S
        if set(admin.bootstrap_servers.split(",")) <= set(cluster.bootstrap_servers.split(",")):
            with ThreadPoolExecutor(1) as pool:  # a browser's test has an event loop on its own thread
                told = pool.submit(_as_brokers_tell, admin, topic).result()
            while (known := _in_mirror(store, topic)) is None or (
                known.topic_id != told.topic_id or len(known.replicas) < len(told.replicas)
            ):
                assert time.monotonic() < deadline, f"the mirror does not show {topic}"
                time.sleep(_EVERY_S / 4)

    return changed


def _as_brokers_tell(admin: TopicAdmin, topic: str) -> AnsweredTopic:
    with closing(MetadataAsker({})) as asker:
        (told,) = asker.listing("", bootstraps(admin.bootstrap_servers)[""], [topic]).topics
    return told


def _in_mirror(store: Store, topic: str) -> MirroredTopic | None:
    (node,) = store.read_many([GetData(layout.broker_topic(topic))])
    return MirroredTopic.from_znode(topic, node.data) if isinstance(node, Node) else None


def partitions_shown(store: Store, topic: str) -> int:
    """Returns how many partitions of the topic ZooKeeper shows, or 0 if it does not show the topic."""
    path = layout.broker_topic(topic)
    return len(json.loads(store.get(path).data)["partitions"]) if store.exists(path) is not None else 0
