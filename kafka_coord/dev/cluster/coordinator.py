"""Runs the coordinator process beside a broker of a local cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from kafka_coord.dev.cluster.kafka import Broker
from kafka_coord.dev.cluster.ports import LOOPBACK
from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.dev.cluster.zookeeper import await_no_ephemeral, ephemeral_exists
from kafka_coord.errors import DevClusterError
from kafka_coord.zk import connect, layout
from kafka_coord.zk.root import read_cluster_record

CoordinatorCommand = Callable[[Broker], Sequence[str]]

# A killed instance stays registered until its session expires. On one machine, no sensible timeout is longer than this.
_REGISTRATION_TIMEOUT_S = 40.0
_INIT_S = 120.0


def serve_command(broker: Broker) -> Sequence[str]:
    """Returns the ``kafka-coord serve`` command for ``broker``, with this Python. The instance also serves Kafka
    clients if the broker has a listener for instances.
    """
    serve = serve_beside(broker.broker_id, broker.zookeeper)
    if broker.instance_port:
        serve += ["--listen-kafka", broker.instance_address, "--broker-listener", broker.listener_address]
        serve += ["--kafka-initial-rebalance-delay-ms", "0"]  # as for the brokers' own groups
    if broker.bootstrap:
        serve += ["--bootstrap", broker.bootstrap]
    return serve


def serve_beside(broker_id: int, zookeeper: str) -> list[str]:
    """Returns the ``serve`` command for this broker id. The broker need not be running."""
    serve = [sys.executable, "-m", "kafka_coord.cli.main", "serve"]
    return [*serve, "--broker-id", str(broker_id), "--zookeeper", zookeeper]


def begin_tree(zookeeper: str, bootstrap: str) -> None:
    """Begins the coordination tree, unless there is one: where Kafka does not use ZooKeeper, ``serve`` does not. Later
    starts do not depend on a broker that answers.
    """
    with closing(connect(zookeeper)) as store:
        record = read_cluster_record(store)
    if record is not None and not record.making:
        return
    command = [sys.executable, "-m", "kafka_coord.cli.main", "init", "--zookeeper", zookeeper, "--bootstrap", bootstrap]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=_INIT_S, check=False)
    if ran.returncode:
        raise DevClusterError(f"kafka-coord init failed: {ran.stderr.strip()}")


class Coordinator:
    """One coordinator process for ``broker``. It counts as started once it is registered in ZooKeeper, elected or
    not. With ``dashboard_port``, it serves the dashboard there."""

    def __init__(
        self,
        directory: Path,
        broker: Broker,
        command: CoordinatorCommand = serve_command,
        dashboard_port: int | None = None,
    ) -> None:
        self.name = f"coordinator-{broker.broker_id}"
        self.broker = broker
        self.dashboard_port = dashboard_port
        self.process = ChildProcess(self.name, (), directory / f"{self.name}.log")
        self._command = command

    @property
    def running(self) -> bool:
        return self.process.running

    def command(self) -> tuple[str, ...]:
        """Returns the command line of the process."""
        dashboard = self.dashboard_port and ("--listen-http", f"{LOOPBACK}:{self.dashboard_port}")
        return (*self._command(self.broker), *(dashboard or ()))

    def registered(self) -> bool:
        """Returns whether ``/consumers/coordinators/<brokerId>`` exists. It may belong to an earlier process whose
        session has not expired yet."""
        return ephemeral_exists(self.broker.zookeeper, layout.instance(self.broker.broker_id)) is True

    def start(self, timeout_s: float = 60.0) -> None:
        """Starts the coordinator and waits until it is registered. Raises :class:`DevClusterError` after
        ``timeout_s``."""
        self.launch()
        self.wait_ready(timeout_s)

    def launch(self) -> None:
        """Waits until the registration of a killed predecessor has expired, then starts the process. Does nothing if
        the process is already running."""
        if self.running:
            return
        registration = layout.instance(self.broker.broker_id)
        if not await_no_ephemeral(self.broker.zookeeper, registration, _REGISTRATION_TIMEOUT_S):
            raise DevClusterError(f"{self.name}: another process holds {registration}; stop that process first")
        if self.broker.bootstrap:
            begin_tree(self.broker.zookeeper, self.broker.bootstrap)
        self.process.command = self.command()
        self.process.start()

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Waits until the instance is registered. After ``timeout_s``, raises :class:`DevClusterError` with the end of
        the log."""
        self.process.wait_until(self.registered, timeout_s)

    def stop(self, timeout_s: float = 15.0) -> None:
        """Stops the instance cleanly, so that an elected one resigns."""
        self.process.stop(timeout_s)

    def kill(self) -> None:
        """Kills the instance (SIGKILL), as a crash would."""
        self.process.kill()
