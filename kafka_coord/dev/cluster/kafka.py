"""Runs real Kafka brokers on loopback, with their metadata in ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kafka_coord.dev.cluster.jars import kafka_class_path
from kafka_coord.dev.cluster.ports import LOOPBACK, free_port
from kafka_coord.dev.cluster.server import JvmProgram, JvmServer, Startable
from kafka_coord.dev.cluster.topics import ClusterView, view_of
from kafka_coord.dev.cluster.zookeeper import await_no_ephemeral
from kafka_coord.errors import DevClusterError
from kafka_coord.zk import layout

_MAIN_CLASS = "kafka.Kafka"


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The options that differ between brokers for daily use and for tests.

    A killed broker stays listed for ``zookeeper_session_ms``, and cannot restart before then. ``properties`` are
    additional lines of ``server.properties``. ``jars_directory`` is passed to
    :func:`kafka_coord.dev.cluster.jars.kafka_class_path`. With ``for_instances``, each broker has a second listener,
    which advertises its instance's address (:attr:`KafkaBroker.instance_port`). ``jvm_flags`` come last, so they
    override the others.
    """

    zookeeper_session_ms: int = 6_000
    replication: int = 1
    heap_mb: int = 256
    log_level: str = "WARN"
    properties: Mapping[str, str] = field(default_factory=dict)
    jars_directory: Path | None = None
    for_instances: bool = False
    jvm_flags: tuple[str, ...] = ()


class KafkaBroker(JvmServer):
    """One broker in ``directory``, registered in ``zookeeper`` (a connect string, with or without chroot).

    A ``with`` block starts and stops the broker. Its log directories are kept. Brokers do not create topics
    automatically.
    """

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

    def launch(self) -> None:
        """Waits until an earlier registration has expired, then starts the process, without waiting until it is ready.
        Kafka exits with NodeExists while ``/brokers/ids/<id>`` exists, for up to a session timeout after a kill.
        """
        if not self.running:
            self._await_deregistration()
        super().launch()

    def view(self) -> ClusterView | None:
        """Returns the cluster as this broker sees it, or None if the broker does not answer."""
        return view_of(self.address)

    def serving(self) -> bool:
        return self.sees({self.broker_id})

    def sees(self, broker_ids: set[int]) -> bool:
        """Returns whether the broker's metadata lists at least these brokers and a controller."""
        view = self.view()
        return view is not None and broker_ids <= view.brokers.keys() and view.controller in view.brokers

    def _await_deregistration(self) -> None:
        registration = layout.broker(self.broker_id)
        timeout_s = self.settings.zookeeper_session_ms / 1000 * 2 + 3
        if not await_no_ephemeral(self.zookeeper, registration, timeout_s):
            raise DevClusterError(
                f"{self.name}: {registration} still exists after {timeout_s:.0f} s, so another broker with this id "
                f"is registered in {self.zookeeper}; stop it, or use another id"
            )

    def _prepare(self) -> JvmProgram:
        config = self.directory / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in self._configuration().items()), "utf-8")
        flags = ("-Xms64m", f"-Xmx{self.settings.heap_mb}m", *self.settings.jvm_flags)
        return JvmProgram(flags, kafka_class_path(self.settings.jars_directory), _MAIN_CLASS, [str(config)])

    def _configuration(self) -> dict[str, str]:
        replication = str(self.settings.replication)
        lines = {
            "broker.id": str(self.broker_id),
            "listeners": f"PLAINTEXT://{self.address}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "zookeeper.connect": self.zookeeper,
            "zookeeper.session.timeout.ms": str(self.settings.zookeeper_session_ms),
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
            "controlled.shutdown.max.retries": "1",
            "controlled.shutdown.retry.backoff.ms": "300",
        }
        if self.settings.for_instances:
            lines |= {
                "listeners": f"PLAINTEXT://{self.address},COORD://{self.listener_address}",
                "advertised.listeners": f"PLAINTEXT://{self.address},COORD://{self.instance_address}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,COORD:PLAINTEXT",
                "inter.broker.listener.name": "PLAINTEXT",
            }
        return lines | dict(self.settings.properties)


class KafkaCluster(Startable):
    """Brokers with ids 1 to ``brokers``, registered in ``zookeeper``. Each has its own directory below
    ``directory``."""

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        *,
        brokers: int = 3,
        ports: Sequence[int | None] = (),
        instance_ports: Sequence[int | None] = (),
        listener_ports: Sequence[int | None] = (),
        settings: KafkaSettings | None = None,
    ) -> None:
        own, beside, between = (_one_each(given, brokers) for given in (ports, instance_ports, listener_ports))
        settings = settings or KafkaSettings(replication=min(brokers, 3))
        self.zookeeper = zookeeper
        self.brokers = tuple(
            KafkaBroker(
                directory / f"kafka-{broker_id}",
                broker_id,
                zookeeper,
                port=port,
                instance_port=instance_port,
                listener_port=listener_port,
                settings=settings,
            )
            for broker_id, (port, instance_port, listener_port) in enumerate(
                zip(own, beside, between, strict=True), start=1
            )
        )

    @property
    def bootstrap_servers(self) -> str:
        """The brokers' addresses, as bootstrap.servers: ``host:port,host:port,…``."""
        return ",".join(broker.address for broker in self.brokers)

    @property
    def instance_servers(self) -> str:
        """The instances' addresses, as bootstrap.servers. Empty if the brokers have no listener for instances."""
        return ",".join(broker.instance_address for broker in self.brokers if broker.instance_port)

    def broker(self, broker_id: int) -> KafkaBroker:
        """Returns the broker with this id. Raises :class:`DevClusterError` if there is none."""
        for broker in self.brokers:
            if broker.broker_id == broker_id:
                return broker
        ids = ", ".join(str(broker.broker_id) for broker in self.brokers)
        raise DevClusterError(f"no broker {broker_id} in this cluster; it has {ids}")

    def start(self, timeout_s: float = 90.0, on_progress: Callable[[str], None] | None = None) -> None:
        """Starts the brokers that are not running, and waits until each lists all brokers and a controller."""
        kafka_class_path(self.brokers[0].settings.jars_directory, on_progress)
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
