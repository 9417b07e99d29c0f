"""Runs a whole local cluster in one directory, which it locks: ZooKeeper, Kafka, and optionally a coordinator beside
each broker. Stops servers that an earlier process left running, according to the cluster's record."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self

from kafka_coord.dev.cluster import record
from kafka_coord.dev.cluster.class_archive import keep_archives
from kafka_coord.dev.cluster.coordinator import Coordinator, CoordinatorCommand, serve_command
from kafka_coord.dev.cluster.identity import boot_id
from kafka_coord.dev.cluster.jars import class_path
from kafka_coord.dev.cluster.kafka import Broker, KafkaCluster, KafkaSettings, KraftBroker
from kafka_coord.dev.cluster.ports import free_port, port_is_free
from kafka_coord.dev.cluster.process import ChildProcess, OnProgress
from kafka_coord.dev.cluster.record import KINDS, ClusterRecord, ServerRecord
from kafka_coord.dev.cluster.server import JvmServer
from kafka_coord.dev.cluster.status import ClusterStatus, read_status
from kafka_coord.dev.cluster.topics import write_and_read_back
from kafka_coord.dev.cluster.zookeeper import ZooKeeperEnsemble, ZooKeeperSettings
from kafka_coord.errors import DevClusterError, KafkaCoordError

_STOP_TIMEOUT_S = 20.0


def end_servers(servers: Iterable[ServerRecord]) -> None:
    """Stops the servers cleanly: coordinators, then brokers, then ZooKeeper. Kills any that are still running
    after 20 s."""
    running = [(server, server.process) for server in servers if server.process is not None]
    for kind in KINDS:
        ending = [(server, process) for server, process in running if server.kind == kind]
        for _, process in ending:
            process.signal(signal.SIGTERM)
            process.signal(signal.SIGCONT)  # a paused process would not handle the first signal
        for server, process in ending:
            if process.wait(_STOP_TIMEOUT_S):
                keep_archives(server.log.parent)
            else:
                process.signal(signal.SIGKILL)
                process.wait(_STOP_TIMEOUT_S)


_FILE_NAME = "lock"


class DirectoryLock:
    """A lock that is held from :meth:`acquire` until :meth:`release`, or until this process ends."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / _FILE_NAME
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def acquire(self) -> None:
        """Takes the lock. Raises :class:`DevClusterError`, which names the process that holds it, and OSError if the
        file is not writable."""
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(descriptor, 32).decode("ascii", errors="replace").strip()
            owner = f"process {pid}" if pid else "another process"
            os.close(descriptor)
            raise DevClusterError(
                f"the cluster in {self._file.parent} is in use by {owner}; stop that process, or use another directory"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode("ascii"))
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


# With less space, Kafka would soon shut down with a longer error.
_MINIMUM_FREE_BYTES = 256 * 1024 * 1024


class DevCluster:
    """ZooKeeper servers and brokers on loopback and, with ``coordinators``, a ``serve`` process beside each broker
    (with ``dashboards``, each serves the page).

    A ``with`` block starts and stops them. ``cluster.json`` in ``directory`` records the servers and their ports, so a
    later process can inspect the cluster (:meth:`status`), stop it (:meth:`down`), or start it again with the same data
    and, if they are free, the same ports. The first ZooKeeper server of a new cluster gets ``zookeeper_port``, if free.
    Only one process at a time may own the directory. Unless it calls
    :meth:`detach`, its servers end when it does, even after a ``kill -9``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 3,
        zookeepers: int = 1,
        zookeeper_port: int | None = None,
        coordinators: bool = False,
        coordinator_command: CoordinatorCommand = serve_command,
        dashboards: bool = False,
        zookeeper_settings: ZooKeeperSettings | None = None,
        kafka_settings: KafkaSettings | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        if brokers < 1 or zookeepers < 1:
            raise DevClusterError(
                f"cannot start {brokers} brokers and {zookeepers} ZooKeeper servers; at least one of each is needed"
            )
        self.directory = directory.absolute()
        self._broker_count = brokers
        self._zookeeper_count = zookeepers
        self._zookeeper_port = zookeeper_port
        self._with_coordinators = coordinators
        self._coordinator_command = coordinator_command
        self._with_dashboards = dashboards
        self._zookeeper_settings = zookeeper_settings
        self._kafka_settings = kafka_settings or KafkaSettings(replication=min(brokers, 3))
        self._progress = on_progress or (lambda _: None)
        self._lock = DirectoryLock(self.directory)
        self._verbs = threading.RLock()
        self._ensemble: ZooKeeperEnsemble | None = None
        self._kafka: KafkaCluster | None = None
        self._coordinators: dict[int, Coordinator] = {}

    @property
    def ensemble(self) -> ZooKeeperEnsemble:
        """The ZooKeeper servers this object started. Raises :class:`DevClusterError` before :meth:`up`."""
        if self._ensemble is None:
            raise DevClusterError(f"the cluster in {self.directory} is not running: call up() first")
        return self._ensemble

    @property
    def kafka(self) -> KafkaCluster:
        """The brokers this object started. Raises :class:`DevClusterError` before :meth:`up`."""
        if self._kafka is None:
            raise DevClusterError(f"the cluster in {self.directory} is not running: call up() first")
        return self._kafka

    @property
    def zookeeper(self) -> str:
        """The connect string of the cluster's ZooKeeper."""
        return self.ensemble.connect_string

    @property
    def bootstrap_servers(self) -> str:
        """The brokers' addresses, as bootstrap.servers."""
        return self.kafka.bootstrap_servers

    @property
    def instance_servers(self) -> str:
        """The instances' addresses, as bootstrap.servers. Empty if they do not serve Kafka clients."""
        return self.kafka.instance_servers

    def coordinator(self, broker_id: int) -> Coordinator:
        """Returns the coordinator beside a broker. Raises :class:`DevClusterError` if there is none."""
        if broker_id not in self._coordinators:
            raise DevClusterError(f"no coordinator was started beside broker {broker_id}")
        return self._coordinators[broker_id]

    def up(self, timeout_s: float = 120.0) -> ClusterStatus:
        """Starts all servers that are not serving, with existing data if there is any. Servers that an earlier run left
        running go on, unless ZooKeeper is down, or they would run otherwise now. Returns once a record has been written
        through every broker and read back. On failure, leaves nothing running that it has started, and raises
        :class:`DevClusterError`.
        """
        with self._verbs, self._errors_explained():
            self.directory.mkdir(parents=True, exist_ok=True)
            self._require_space()
            self._lock.acquire()
            try:
                before = record.load(self.directory)
                if before is not None:
                    self._require_same_shape(before)
                kept = self._serving(before) if before is not None else {}
                self._start_all(before, kept, timeout_s)
            except BaseException:
                self._kill_own()
                self._lock.release()
                raise
            return self.status()

    def down(self) -> None:
        """Stops all servers of this directory, including those started by other processes: coordinators, then brokers,
        then ZooKeeper.

        The data is kept. Raises :class:`DevClusterError` if another live process owns the cluster.
        """
        with self._verbs, self._errors_explained():
            if not self.directory.is_dir():
                return
            if not self._lock.held:
                self._lock.acquire()
            try:
                self._stop_own()
                if (found := record.load(self.directory)) is not None:
                    end_servers(found.running())
                    self._save_stopped(found)
            finally:
                self._lock.release()

    def detach(self) -> None:
        """Keeps the servers running when this process ends. Another process may then call :meth:`down`."""
        with self._verbs:
            self._save()
            for child in self._own_processes():
                child.let_outlive_parent()
            self._lock.release()

    def status(self) -> ClusterStatus:
        """Returns the current servers of the directory, including those started by other processes."""
        with self._verbs:
            if self._lock.held and self._ensemble is not None:
                self._save()  # a server may have been killed and restarted through its own methods
            return read_status(self.directory)

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def _require_space(self) -> None:
        free = shutil.disk_usage(self.directory).free
        if free < _MINIMUM_FREE_BYTES:
            raise DevClusterError(
                f"only {free // 2**20} MB are free in {self.directory}; a cluster needs "
                f"{_MINIMUM_FREE_BYTES // 2**20} MB to start; free some space, or use another directory"
            )

    def _require_same_shape(self, before: ClusterRecord) -> None:
        brokers, zookeepers = len(before.of_kind("kafka")), len(before.of_kind("zookeeper"))
        if brokers and before.kraft is not self._kafka_settings.kraft:
            other = "in KRaft mode (--kraft)" if before.kraft else "without KRaft (omit --kraft)"
            raise DevClusterError(
                f"{self.directory} holds a cluster of Kafka {before.kafka_version} {other}, not of "
                f"{self._kafka_settings.release.name}; use another directory, or remove this one"
            )
        if brokers > self._broker_count or (zookeepers and zookeepers != self._zookeeper_count):
            raise DevClusterError(
                f"{self.directory} holds a cluster of {brokers} brokers and {zookeepers} ZooKeeper servers, not "
                f"{self._broker_count} and {self._zookeeper_count}; use another directory, or remove this one"
            )

    def _serving(self, before: ClusterRecord) -> dict[str, ServerRecord]:
        """Returns the servers that an earlier run has left and that serve. If ZooKeeper does not, returns none."""
        if not before.running():
            return {}
        serving = {server.name for server in read_status(self.directory).servers if server.serving}
        if any(server.name not in serving for server in before.of_kind("zookeeper")):
            return {}
        return {server.name: server for server in before.running() if server.name in serving}

    def _adopt(self, before: ClusterRecord, kept: dict[str, ServerRecord]) -> None:
        """Keeps the servers that would run as they do, and ends all others of the earlier run."""
        for coordinator in self._coordinators.values():
            found = kept.get(coordinator.name)
            beside = f"kafka-{coordinator.broker.broker_id}" in kept
            if found is not None and not (beside and _runs(found, coordinator.command())):
                del kept[coordinator.name]
        processes = {child.name: child for child in self._own_processes()}
        for server in before.running():
            if server.name in kept and server.name in processes and server.process is not None:
                processes[server.name].adopt(server.process)
        if leftovers := [server for server in before.running() if server.name not in kept.keys() & processes.keys()]:
            self._progress(f"stopping {', '.join(server.name for server in leftovers)} of an earlier run")
            end_servers(leftovers)

    def _start_all(self, before: ClusterRecord | None, kept: dict[str, ServerRecord], timeout_s: float) -> None:
        settings = self._kafka_settings
        # before any server runs, because the fetch may fail
        class_path(settings.release, self._progress)
        self._make_servers(before, kept)
        if before is not None:
            self._adopt(before, kept)
        if self._own_processes() and all(child.running for child in self._own_processes()):
            self._progress("all servers are already up")
            self._save()
            return
        self._progress(f"starting ZooKeeper, servers: {self._zookeeper_count}")
        for server in self.ensemble.servers:
            server.launch()
        self._save()
        self.ensemble.start(timeout_s)
        self._progress(f"starting {settings.release.name}, brokers: {self._broker_count}")
        for broker in self.kafka.brokers:
            broker.launch()
        self._save()
        self.kafka.start(timeout_s)
        self._progress("writing a record through every broker and reading it back")
        write_and_read_back(self.bootstrap_servers, self._broker_count, timeout_s)
        if self._coordinators:
            self._progress("starting a coordinator beside each broker")
            self._start_coordinators(timeout_s)

    def _make_servers(self, before: ClusterRecord | None, kept: dict[str, ServerRecord]) -> None:
        ending = before.running() if before is not None else ()

        def same(name: str, port: int | None) -> int | None:
            """Returns the port of the last run, unless somebody else has taken it."""
            if port is None or port_is_free(port) or name in kept or any(one.name == name for one in ending):
                return port
            self._progress(f"port {port} of {name} is taken, so it gets another one")
            return None

        def port(name: str) -> int | None:
            found = before.server(name) if before is not None else None
            if found is None and name == "zookeeper-1" and self._zookeeper_port is not None:
                return self._zookeeper_port if port_is_free(self._zookeeper_port) else None
            return same(name, found.port) if found is not None else None

        def other_port(name: str) -> int | None:
            found = before.server(name) if before is not None else None
            return same(name, found.other_port) if found is not None else None

        def controller_port(name: str) -> int | None:
            found = before.server(name) if before is not None else None
            port = found.controller_port if found is not None else None
            return None if port is None else same(name, port) or free_port()

        brokers = range(1, self._broker_count + 1)
        self._ensemble = ZooKeeperEnsemble(
            self.directory,
            servers=self._zookeeper_count,
            ports=[port(f"zookeeper-{number}") for number in range(1, self._zookeeper_count + 1)],
            settings=self._zookeeper_settings,
        )
        self._kafka = KafkaCluster(
            self.directory,
            self._ensemble.connect_string,
            brokers=self._broker_count,
            ports=[port(f"kafka-{number}") for number in brokers],
            instance_ports=[port(f"coordinator-{number}") for number in brokers],
            listener_ports=[other_port(f"kafka-{number}") for number in brokers],
            controller_ports=[controller_port(f"kafka-{number}") for number in brokers],
            settings=self._kafka_settings,
        )
        for broker in self._kafka.brokers if self._with_coordinators else ():
            name = f"coordinator-{broker.broker_id}"
            dashboard = (other_port(name) or free_port()) if self._with_dashboards else None
            self._coordinators[broker.broker_id] = Coordinator(
                self.directory / name, broker, self._coordinator_command, dashboard
            )

    def _start_coordinators(self, timeout_s: float) -> None:
        for coordinator in self._coordinators.values():
            coordinator.launch()
        self._save()
        for coordinator in self._coordinators.values():
            coordinator.wait_ready(timeout_s)

    def _save(self) -> None:
        servers = [_record("zookeeper", server) for server in self.ensemble.servers]
        servers += [_broker_record(broker) for broker in self.kafka.brokers]
        servers += [
            ServerRecord(
                beside.name,
                "coordinator",
                beside.process.log,
                beside.broker.instance_port or None,
                beside.process.identity,
                beside.dashboard_port,
            )
            for beside in self._coordinators.values()
        ]
        record.save(self.directory, ClusterRecord(tuple(servers), boot_id(), self._kafka_settings.kafka_version))

    def _save_stopped(self, found: ClusterRecord) -> None:
        servers = tuple(replace(server, process=None) for server in found.servers)
        record.save(self.directory, ClusterRecord(servers, found.boot_id, found.kafka_version))

    def _own_processes(self) -> list[ChildProcess]:
        children = [coordinator.process for coordinator in self._coordinators.values()]
        if self._kafka is not None:
            children += [broker.process for broker in self._kafka.brokers]
        if self._ensemble is not None:
            children += [server.process for server in self._ensemble.servers]
        return children

    def _stop_own(self) -> None:
        for coordinator in self._coordinators.values():
            coordinator.process.terminate()
        for coordinator in self._coordinators.values():
            coordinator.stop()
        if self._kafka is not None:
            self._kafka.stop()
        if self._ensemble is not None:
            self._ensemble.stop()

    def _kill_own(self) -> None:
        for child in self._own_processes():
            child.kill()

    @contextlib.contextmanager
    def _errors_explained(self) -> Iterator[None]:
        try:
            yield
        except DevClusterError:
            raise
        except OSError as error:
            raise DevClusterError(f"{self.directory} cannot be used: {error}; use another directory") from error
        except KafkaCoordError as error:  # the error is about these brokers, not the caller's cluster
            raise DevClusterError(f"the cluster in {self.directory} is not working: {error}") from error


def _runs(server: ServerRecord, command: tuple[str, ...]) -> bool:
    return server.process is not None and server.process.command() == command


def _broker_record(broker: Broker) -> ServerRecord:
    controller = broker.controller_port if isinstance(broker, KraftBroker) else None
    found = _record("kafka", broker)
    return replace(found, other_port=broker.listener_port or None, controller_port=controller or None)


def _record(kind: str, server: JvmServer) -> ServerRecord:
    return ServerRecord(server.name, kind, server.log, server.port, server.process.identity)
