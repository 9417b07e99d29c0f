"""Runs real Kafka brokers on loopback: Kafka 3.9 with its metadata in ZooKeeper, or Kafka 4.3 in KRaft mode."""

from __future__ import annotations

import shutil
import uuid
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka_coord.dev.cluster.class_archive import run_java
from kafka_coord.dev.cluster.jars import KAFKA, KAFKA_4, KAFKA_4_VERSION, KAFKA_VERSION, Release, class_path
from kafka_coord.dev.cluster.ports import LOOPBACK, free_port
from kafka_coord.dev.cluster.server import JvmProgram, JvmServer, Startable
from kafka_coord.dev.cluster.topics import ClusterView, view_of
from kafka_coord.dev.cluster.zookeeper import await_no_ephemeral
from kafka_coord.errors import DevClusterError
from kafka_coord.model import topic_id_from_bytes
from kafka_coord.zk import layout

_MAIN_CLASS = "kafka.Kafka"
_CONTROLLERS = 3
_FORMAT_S = 120.0
_FEATURES = "bootstrap.checkpoint"


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The options that differ between brokers for daily use and for tests.

    With ``kraft``, the brokers of a :class:`KafkaCluster` run Kafka 4.3 in KRaft mode. A killed broker stays listed for
    ``session_ms``, and cannot restart before then. ``properties`` are additional lines of ``server.properties``. With
    ``for_instances``, each broker has a second listener, which advertises its instance's address
    (:attr:`Broker.instance_port`). ``listeners`` names further ones (:attr:`Broker.further`). ``jvm_flags`` come last,
    so they override the others.
    """

    kraft: bool = False
    session_ms: int = 6_000
    replication: int = 1
    heap_mb: int = 256
    log_level: str = "WARN"
    properties: Mapping[str, str] = field(default_factory=dict)
    for_instances: bool = False
    listeners: tuple[str, ...] = ()
    jvm_flags: tuple[str, ...] = ()

    @property
    def release(self) -> Release:
        """The release of Kafka that the brokers run."""
        return KAFKA_4 if self.kraft else KAFKA

    @property
    def kafka_version(self) -> str:
        return KAFKA_4_VERSION if self.kraft else KAFKA_VERSION


class Broker(JvmServer):
    """One broker in ``directory``. Its instance keeps its groups in ``zookeeper`` (a connect string, with or without
    chroot).

    A ``with`` block starts and stops the broker. Its log directories are kept. Brokers do not create topics
    automatically.
    """

    release = KAFKA

    def __init__(
        self,
        directory: Path,
        broker_id: int,
        zookeeper: str,
        *,
        port: int | None = None,
        instance_port: int | None = None,
        listener_port: int | None = None,
        settings: KafkaSettings | None = None,
    ) -> None:
        super().__init__(f"kafka-{broker_id}", directory, port=port, log_level=(settings or KafkaSettings()).log_level)
        self.broker_id = broker_id
        self.zookeeper = zookeeper
        self.settings = settings or KafkaSettings()
        self.instance_port = (instance_port or free_port()) if self.settings.for_instances else 0
        """The port at which the broker's instance serves Kafka clients."""
        self.listener_port = (listener_port or free_port()) if self.settings.for_instances else 0
        """The port at which the broker listens for its instance."""
        self.further = {name: f"{LOOPBACK}:{free_port()}" for name in self.settings.listeners}
        """The addresses of the further listeners, by their names."""

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

    @property
    def bootstrap(self) -> str:
        """The brokers that the instance asks for the metadata. Empty if Kafka's own znodes have it."""
        return ""

    def view(self) -> ClusterView | None:
        """Returns the cluster as this broker sees it, or None if the broker does not answer."""
        return view_of(self.address)

    def serving(self) -> bool:
        return self.sees({self.broker_id})

    def sees(self, broker_ids: set[int]) -> bool:
        """Returns whether the broker's metadata lists at least these brokers and a controller."""
        view = self.view()
        return view is not None and broker_ids <= view.brokers.keys() and view.controller in view.brokers

    def _prepare(self) -> JvmProgram:
        config = self.directory / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in self._configuration().items()), "utf-8")
        flags = ("-Xms64m", f"-Xmx{self.settings.heap_mb}m", *self.settings.jvm_flags)
        return JvmProgram(flags, class_path(self.release), _MAIN_CLASS, [str(config)])

    @abstractmethod
    def _mode(self) -> dict[str, str]:
        """Returns the lines of ``server.properties`` that say where the metadata is."""

    def _listeners(self) -> dict[str, tuple[str, str]]:
        """Returns where the broker listens and what it advertises there, for each listener's name. Either may be ""."""
        listeners = {name: (at, at) for name, at in {"PLAINTEXT": self.address, **self.further}.items()}
        if self.settings.for_instances:
            listeners["COORD"] = (self.listener_address, self.instance_address)
        return listeners

    def _configuration(self) -> dict[str, str]:
        replication = str(self.settings.replication)
        listeners = self._listeners()
        lines = {
            **self._mode(),
            "listeners": ",".join(f"{name}://{one}" for name, (one, _) in listeners.items() if one),
            "advertised.listeners": ",".join(f"{name}://{one}" for name, (_, one) in listeners.items() if one),
            "log.dirs": str(self.directory / "data"),
            "auto.create.topics.enable": "false",
            "default.replication.factor": replication,
            "offsets.topic.replication.factor": replication,
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.replication.factor": replication,
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "3",
            "group.initial.rebalance.delay.ms": "0",
            "log.retention.ms": "-1",  # otherwise, Kafka deletes records whose timestamp is more than a week ago
            # Small buffers and few threads, because three brokers share a laptop.
            "log.cleaner.dedupe.buffer.size": "2097152",
            "log.index.size.max.bytes": "1048576",
            "num.network.threads": "2",
            "num.io.threads": "4",
            "background.threads": "2",
        }
        if len(listeners) > 1:
            lines["listener.security.protocol.map"] = ",".join(f"{name}:PLAINTEXT" for name in listeners)
            lines["inter.broker.listener.name"] = "PLAINTEXT"
        return lines | dict(self.settings.properties)


class KafkaBroker(Broker):
    """A broker of Kafka 3.9 with its metadata in ``zookeeper``."""

    def launch(self) -> None:
        """Waits until an earlier registration has expired, then starts the process, without waiting until it is ready.
        Kafka exits with NodeExists while ``/brokers/ids/<id>`` exists, for up to a session timeout after a kill.
        """
        if not self.running:
            self._await_deregistration()
        super().launch()

    def _await_deregistration(self) -> None:
        registration = layout.broker(self.broker_id)
        timeout_s = self.settings.session_ms / 1000 * 2 + 3
        if not await_no_ephemeral(self.zookeeper, registration, timeout_s):
            raise DevClusterError(
                f"{self.name}: {registration} still exists after {timeout_s:.0f} s, so another broker with this id "
                f"is registered in {self.zookeeper}; stop it, or use another id"
            )

    def _mode(self) -> dict[str, str]:
        return {
            "broker.id": str(self.broker_id),
            "zookeeper.connect": self.zookeeper,
            "zookeeper.session.timeout.ms": str(self.settings.session_ms),
            "controlled.shutdown.max.retries": "1",
            "controlled.shutdown.retry.backoff.ms": "300",
        }


class KraftBroker(Broker):
    """A broker of Kafka 4.3 in KRaft mode, and a controller too, unless ``controller_port`` is 0. Alone, it is a
    cluster of its own; :class:`KafkaCluster` tells it the others."""

    release = KAFKA_4

    def __init__(
        self, directory: Path, broker_id: int, zookeeper: str = "", *, controller_port: int | None = None, **given: Any
    ) -> None:
        super().__init__(directory, broker_id, zookeeper, **given)
        self.controller_port = free_port() if controller_port is None else controller_port
        """The port at which the broker is a controller, or 0."""
        self.cluster_id = _new_id()
        self.peers: Sequence[KraftBroker] = (self,)
        """All brokers of the cluster, with this one."""

    @property
    def bootstrap(self) -> str:
        return ",".join(peer.address for peer in self.peers)

    def _prepare(self) -> JvmProgram:
        program = super()._prepare()
        if not _meta(self.directory).exists():
            self._format(program)
        return program

    def _format(self, program: JvmProgram) -> None:
        """Formats the directory, because KRaft starts only on formatted directories. If another broker's is formatted,
        takes over what Kafka's tool wrote there, which saves the start of a JVM.
        """
        formatted = next((peer.directory for peer in self.peers if _meta(peer.directory).exists()), None)
        if formatted is not None:
            ids = {"cluster.id": self.cluster_id, "directory.id": _new_id(), "node.id": str(self.broker_id)}
            meta = _meta(self.directory)
            meta.parent.mkdir(exist_ok=True)
            shutil.copy(_meta(formatted).with_name(_FEATURES), meta.with_name(_FEATURES))
            meta.write_text("".join(f"{key}={value}\n" for key, value in {"version": "1", **ids}.items()), "ascii")
            return
        arguments = [
            *("-cp", ":".join(map(str, program.class_path)), "kafka.tools.StorageTool", "format"),
            *("--cluster-id", self.cluster_id, "--config", *program.arguments),
        ]
        answer = run_java(arguments, _FORMAT_S)
        if answer.returncode != 0:
            raise DevClusterError(f"{self.name}: {self.directory} cannot be formatted: {answer.stdout.strip()[-600:]}")

    def _listeners(self) -> dict[str, tuple[str, str]]:
        bound = f"{LOOPBACK}:{self.controller_port}" if self.controller_port else ""
        return {**super()._listeners(), "CONTROLLER": (bound, "")}

    def _mode(self) -> dict[str, str]:
        return {
            "process.roles": "broker,controller" if self.controller_port else "broker",
            "node.id": str(self.broker_id),
            "controller.quorum.voters": ",".join(
                f"{peer.broker_id}@{LOOPBACK}:{peer.controller_port}" for peer in self.peers if peer.controller_port
            ),
            "controller.listener.names": "CONTROLLER",
            "broker.session.timeout.ms": str(self.settings.session_ms),
            "broker.heartbeat.interval.ms": str(self.settings.session_ms // 4),
            # A broker that is stopped together with most controllers would wait for them in vain.
            "controlled.shutdown.enable": "false",
            "share.coordinator.state.topic.replication.factor": str(self.settings.replication),
            "share.coordinator.state.topic.min.isr": "1",
        }


def _new_id() -> str:
    while True:
        found = topic_id_from_bytes(uuid.uuid4().bytes)
        if not found.startswith("-"):  # would look like an option; Kafka's own generator avoids it, too
            return found


def _meta(directory: Path) -> Path:
    return directory / "data" / "meta.properties"


def _formatted_as(directory: Path) -> str | None:
    """Returns the id of the cluster whose data is in a broker's directory, or None if there is none."""
    if not _meta(directory).exists():
        return None
    lines = dict(line.split("=", 1) for line in _meta(directory).read_text("utf-8").splitlines() if "=" in line)
    return lines.get("cluster.id")


class KafkaCluster(Startable):
    """Brokers with ids 1 to ``brokers``, each with its own directory below ``directory``. ``zookeeper`` has their
    metadata or, with ``settings.kraft``, only the instances' groups. In KRaft mode, the brokers with a port in
    ``controller_ports`` are controllers too; without any, the first three, or one of fewer."""

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        *,
        brokers: int = 3,
        ports: Sequence[int | None] = (),
        instance_ports: Sequence[int | None] = (),
        listener_ports: Sequence[int | None] = (),
        controller_ports: Sequence[int | None] = (),
        settings: KafkaSettings | None = None,
    ) -> None:
        own, beside, between, controllers = (
            _one_each(given, brokers) for given in (ports, instance_ports, listener_ports, controller_ports)
        )
        settings = settings or KafkaSettings(replication=min(brokers, 3))
        self.zookeeper = zookeeper
        self.brokers: tuple[Broker, ...] = tuple(
            (KraftBroker if settings.kraft else KafkaBroker)(
                directory / f"kafka-{broker_id}",
                broker_id,
                zookeeper,
                port=own[broker_id - 1],
                instance_port=beside[broker_id - 1],
                listener_port=between[broker_id - 1],
                settings=settings,
            )
            for broker_id in range(1, brokers + 1)
        )
        kraft = [broker for broker in self.brokers if isinstance(broker, KraftBroker)]
        known = next(filter(None, (_formatted_as(broker.directory) for broker in kraft)), None)
        for number, broker in enumerate(kraft):
            broker.peers = kraft
            broker.cluster_id = known or kraft[0].cluster_id
            if any(controllers):
                broker.controller_port = controllers[number] or 0
            elif number >= (_CONTROLLERS if brokers >= _CONTROLLERS else 1):
                broker.controller_port = 0

    @property
    def bootstrap_servers(self) -> str:
        """The brokers' addresses, as bootstrap.servers: ``host:port,host:port,…``."""
        return ",".join(broker.address for broker in self.brokers)

    @property
    def instance_servers(self) -> str:
        """The instances' addresses, as bootstrap.servers. Empty if the brokers have no listener for instances."""
        return ",".join(broker.instance_address for broker in self.brokers if broker.instance_port)

    def broker(self, broker_id: int) -> Broker:
        """Returns the broker with this id. Raises :class:`DevClusterError` if there is none."""
        for broker in self.brokers:
            if broker.broker_id == broker_id:
                return broker
        ids = ", ".join(str(broker.broker_id) for broker in self.brokers)
        raise DevClusterError(f"no broker {broker_id} in this cluster; it has {ids}")

    def start(self, timeout_s: float = 90.0, on_progress: Callable[[str], None] | None = None) -> None:
        """Starts the brokers that are not running, and waits until each lists all brokers and a controller."""
        class_path(self.brokers[0].release, on_progress)
        for broker in self.brokers:
            broker.launch()
        everyone = {broker.broker_id for broker in self.brokers}
        for broker in self.brokers:
            broker.wait_until(lambda broker=broker: broker.sees(everyone), timeout_s)  # type: ignore[misc]

    def stop(self) -> None:
        """Stops all brokers cleanly, at the same time."""
        for broker in self.brokers:
            broker.process.terminate()
        for broker in self.brokers:
            broker.stop()

    def kill(self) -> None:
        """Kills all brokers, as a crash would."""
        for broker in self.brokers:
            broker.kill()


def _one_each(ports: Sequence[int | None], brokers: int) -> Sequence[int | None]:
    if ports and len(ports) != brokers:
        raise DevClusterError(f"{len(ports)} ports given for {brokers} brokers; give one port per broker, or none")
    return ports or [None] * brokers
