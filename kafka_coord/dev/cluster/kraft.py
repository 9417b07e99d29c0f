"""Runs a real Kafka 4 broker in KRaft mode on loopback."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from pathlib import Path

from kafka_coord.dev.cluster.class_archive import run_java
from kafka_coord.dev.cluster.jars import LIBRARIES, OWN_JARS, Artifact, fetched_class_path, kafka_release
from kafka_coord.dev.cluster.ports import LOOPBACK, free_port
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.dev.cluster.server import JvmProgram, JvmServer
from kafka_coord.dev.cluster.topics import view_of
from kafka_coord.errors import DevClusterError

KAFKA_4_VERSION = "4.3.0"
_NODE_ID = 1
_FORMAT_S = 120.0

KAFKA_4 = kafka_release(
    KAFKA_4_VERSION,
    (*OWN_JARS, "coordinator-common", "share-coordinator"),
    (
        *LIBRARIES,
        Artifact("net.sourceforge.argparse4j", "argparse4j", "0.7.0"),
        Artifact("org.pcollections", "pcollections", "4.0.2"),
        Artifact("com.github.ben-manes.caffeine", "caffeine", "3.2.0"),
        Artifact("com.google.re2j", "re2j", "1.8"),
        Artifact("com.dynatrace.hash4j", "hash4j", "0.22.0"),
        Artifact("org.hdrhistogram", "HdrHistogram", "2.2.2"),
    ),
)


class KraftBroker(JvmServer):
    """A broker and controller in one process. ``properties`` are additional lines of its configuration. With
    ``zookeeper``, where the broker's instance keeps its groups, it has a second listener, which advertises the
    instance's address.

    A ``with`` block starts and stops the broker. It does not create topics automatically.
    """

    def __init__(
        self,
        directory: Path,
        *,
        properties: Mapping[str, str] | None = None,
        heap_mb: int = 512,
        log_level: str = "WARN",
        zookeeper: str = "",
    ) -> None:
        super().__init__("kafka-kraft", directory, port=None, log_level=log_level)
        self.broker_id, self.zookeeper = _NODE_ID, zookeeper
        self.instance_port, self.listener_port = (free_port(), free_port()) if zookeeper else (0, 0)
        self._controller_port = free_port()
        self._properties = dict(properties or {})
        self._heap_mb = heap_mb

    @property
    def address(self) -> str:
        """The address for clients, as ``host:port``."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def instance_address(self) -> str:
        """The address at which the broker's instance serves Kafka clients."""
        return f"{LOOPBACK}:{self.instance_port}"

    @property
    def listener_address(self) -> str:
        """The broker's address for its instance, as ``host:port``."""
        return f"{LOOPBACK}:{self.listener_port}"

    def fetch(self, on_progress: OnProgress | None = None) -> None:
        """Fetches the broker's jars, so that no measurement has to wait for them."""
        fetched_class_path(KAFKA_4, on_progress)

    def serving(self) -> bool:
        view = view_of(self.address)
        return view is not None and bool(view.brokers)

    def _prepare(self) -> JvmProgram:
        class_path = fetched_class_path(KAFKA_4)
        config = self.directory / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in self._configuration().items()), "utf-8")
        if not (self.directory / "data" / "meta.properties").exists():
            self._format(class_path, config)
        return JvmProgram(("-Xms64m", f"-Xmx{self._heap_mb}m"), class_path, "kafka.Kafka", [str(config)])

    def _format(self, class_path: tuple[Path, ...], config: Path) -> None:
        """Formats the directory with a new cluster id, because KRaft starts only on formatted directories."""
        cluster_id = "-"
        while cluster_id.startswith("-"):  # would look like an option; Kafka's own generator avoids it, too
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        arguments = [
            *("-cp", ":".join(map(str, class_path))),
            *("kafka.tools.StorageTool", "format", "--cluster-id", cluster_id, "--config", str(config)),
        ]
        answer = run_java(arguments, _FORMAT_S)
        if answer.returncode != 0:
            raise DevClusterError(f"{self.name}: {self.directory} cannot be formatted: {answer.stdout.strip()[-600:]}")

    def _configuration(self) -> dict[str, str]:
        controller = f"{LOOPBACK}:{self._controller_port}"
        lines = {
            "process.roles": "broker,controller",
            "node.id": str(_NODE_ID),
            "controller.quorum.voters": f"{_NODE_ID}@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.directory / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "log.cleaner.dedupe.buffer.size": "2097152",
            "log.index.size.max.bytes": "1048576",
        }
        if self.instance_port:
            lines |= {
                "listeners": f"{lines['listeners']},COORD://{self.listener_address}",
                "advertised.listeners": f"{lines['advertised.listeners']},COORD://{self.instance_address}",
                "listener.security.protocol.map": f"{lines['listener.security.protocol.map']},COORD:PLAINTEXT",
                "inter.broker.listener.name": "PLAINTEXT",
            }
        return lines | self._properties
