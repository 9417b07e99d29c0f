"""Reads the status of a local cluster from its directory and its servers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kafka_coord.dev.cluster import record
from kafka_coord.dev.cluster.ports import LOOPBACK
from kafka_coord.dev.cluster.record import ClusterRecord, ServerRecord
from kafka_coord.dev.cluster.topics import view_of
from kafka_coord.dev.cluster.zookeeper import ephemeral_exists, server_mode
from kafka_coord.zk import layout


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """One server. ``pid`` is None if it is not running. ``state`` is ``leader``, ``broker``, ``stopped`` or the like.

    ``address`` is None for a coordinator that does not serve Kafka clients.
    """

    name: str
    kind: str
    address: str | None
    pid: int | None
    serving: bool
    state: str
    log: Path


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The addresses and servers of a cluster. If there are no servers, ``directory`` has no cluster.
    ``instance_servers``: see :attr:`~kafka_coord.dev.cluster.cluster.DevCluster.instance_servers`. ``dashboards`` are
    the addresses of the page, which every instance serves.
    """

    directory: Path
    zookeeper: str
    bootstrap_servers: str
    instance_servers: str
    kafka_version: str
    servers: tuple[ServerStatus, ...]
    dashboards: tuple[str, ...] = ()

    @property
    def up(self) -> bool:
        """Whether there is a cluster, and all its servers are serving."""
        return bool(self.servers) and all(server.serving for server in self.servers)

    @property
    def down(self) -> bool:
        """Whether none of its servers is running."""
        return all(server.pid is None for server in self.servers)


def read_status(directory: Path) -> ClusterStatus:
    """Asks the servers in ``directory`` for their status.

    Raises :class:`~kafka_coord.errors.DevClusterError` if the cluster's record is malformed.
    """
    directory = directory.absolute()
    found = record.load(directory)
    if found is None:
        return ClusterStatus(directory, "", "", "", "", ())
    running = set(found.running())
    zookeeper = _addresses(found, "zookeeper")
    return ClusterStatus(
        directory=directory,
        zookeeper=zookeeper,
        bootstrap_servers=_addresses(found, "kafka"),
        instance_servers=_addresses(found, "coordinator"),
        kafka_version=found.kafka_version,
        servers=tuple(_status(server, found, server in running, zookeeper) for server in found.servers),
        dashboards=tuple(
            f"http://{LOOPBACK}:{server.other_port}/dashboard/"
            for server in found.of_kind("coordinator")
            if server.other_port is not None
        ),
    )


def _status(server: ServerRecord, found: ClusterRecord, runs: bool, zookeeper: str) -> ServerStatus:
    serving, state = _ask(server, zookeeper, kraft=found.kraft) if runs else (False, "stopped")
    return ServerStatus(
        name=server.name,
        kind=server.kind,
        address=None if server.port is None else f"{LOOPBACK}:{server.port}",
        pid=server.process.pid if runs and server.process else None,
        serving=serving,
        state=state,
        log=server.log,
    )


def _ask(server: ServerRecord, zookeeper: str, *, kraft: bool) -> tuple[bool, str]:
    if server.process is not None and server.process.paused():
        return False, "paused"
    if server.kind == "zookeeper" and server.port is not None:
        mode = server_mode(server.port)
        return mode is not None, mode or "not serving"
    if server.kind == "kafka":
        address = f"{LOOPBACK}:{server.port}"
        view = view_of(address)
        if view is None or address not in view.brokers.values():
            return False, "not serving"
        if kraft:  # the metadata names any broker then
            return True, "broker and controller" if server.controller_port else "broker"
        return True, "controller" if view.brokers.get(view.controller) == address else "broker"
    registered = ephemeral_exists(zookeeper, layout.instance(int(server.name.rpartition("-")[2]))) is True
    return registered, "registered" if registered else "not registered"


def _addresses(found: ClusterRecord, kind: str) -> str:
    return ",".join(f"{LOOPBACK}:{server.port}" for server in found.of_kind(kind) if server.port is not None)
