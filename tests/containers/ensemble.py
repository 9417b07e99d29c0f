"""Three ZooKeeper servers in containers of the image of ``zk-docker/``, with the interface of the embedded ensemble.

The methods are those of :class:`kafka_coord.dev.cluster.zookeeper.ZooKeeperEnsemble`: a scenario runs on either.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

# Ryuk, which would clean up after a killed test run, is an image from a registry. Instead, stale containers are removed
# at the start.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")

from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient
from testcontainers.core.network import Network

from kafka_coord.dev.cluster.ports import LOOPBACK, free_port
from kafka_coord.dev.cluster.zookeeper import four_letter_word
from tests.waiting import eventually

OWNER_LABEL = "kafka-coord.test-process"
_OWNER = {OWNER_LABEL: str(os.getpid())}
CLIENT_PORT, QUORUM_PORT, ELECTION_PORT = 2181, 2888, 3888

# Allows sessions of 400 ms and more, as the embedded servers do. The limits in ticks suffice for three JVMs on two busy
# cores.
FAST_SETTINGS = {
    "ZOO_TICK_TIME": "200",
    "ZOO_INIT_LIMIT": "50",
    "ZOO_SYNC_LIMIT": "25",
    "ZOO_MAX_SESSION_TIMEOUT": "60000",
    "ZOO_STANDALONE_ENABLED": "false",
    "ZOO_LOG_LEVEL": "WARN",
    # The address of a killed container does not answer at all, and by default each connection attempt waits 5 s.
    "ZOO_JVM_FLAGS": "-Xmx96m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dzookeeper.cnxTimeout=1000 "
    "-Dzookeeper.preAllocSize=4096",
}


class ContainerServer:
    """One server of the ensemble. Its port on loopback is the same before and after a kill."""

    def __init__(self, container: DockerContainer, *, server_id: int, port: int) -> None:
        self._container = container
        self.server_id = server_id
        self.port = port

    @property
    def connect_string(self) -> str:
        """The address for clients, as ``host:port``."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def running(self) -> bool:
        if self._container._container is None:  # never launched; testcontainers has no method to ask
            return False
        wrapped = self._wrapped
        wrapped.reload()
        return bool(wrapped.attrs["State"]["Running"])

    def mode(self) -> str | None:
        """``leader`` or ``follower``; None while it does not serve."""
        for line in four_letter_word(self.port, "srvr").splitlines():
            if line.startswith("Mode:"):
                return line.partition(":")[2].strip()
        return None

    def serving(self) -> bool:
        return self.mode() in {"leader", "follower"}

    def launch(self) -> None:
        """Starts the container if it does not run, and does not wait: a single server has no quorum."""
        if self._container._container is None:
            self._container.start()
        elif not self.running:
            self._wrapped.start()

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Waits until it serves, as leader or follower."""
        eventually(self.serving, within_s=timeout_s, every_s=0.1)

    def start(self, timeout_s: float = 60.0) -> None:
        self.launch()
        self.wait_ready(timeout_s)

    def stop(self) -> None:
        """Stops it as an operator would (SIGTERM); its data stays."""
        self._wrapped.stop()

    def kill(self) -> None:
        """Kills it as a crash would (SIGKILL); its data stays."""
        if self.running:
            self._wrapped.kill()
            self._wrapped.wait()

    def pause(self) -> None:
        """Freezes it: connections stay open, nothing is answered."""
        self._wrapped.pause()

    def resume(self) -> None:
        self._wrapped.unpause()

    def restore(self) -> None:
        """Ends a pause, so that a start finds a running server or none."""
        if self.running and self._wrapped.attrs["State"]["Paused"]:
            self.resume()

    def log(self) -> str:
        return self._wrapped.logs().decode(errors="replace")

    def remove(self) -> None:
        """Removes the container and its data, if it was launched."""
        self._container.stop()

    @property
    def _wrapped(self) -> Any:
        return self._container.get_wrapped_container()


class ContainerEnsemble:
    """Three servers on their own network, reached through fixed ports on loopback. ``with`` starts and removes them."""

    def __init__(self, image: str, *, servers: int = 3) -> None:
        self._network = Network(docker_network_kw={"labels": _OWNER})
        identifiers = range(1, servers + 1)
        members = " ".join(
            f"server.{number}=zookeeper-{number}:{QUORUM_PORT}:{ELECTION_PORT};{CLIENT_PORT}" for number in identifiers
        )
        self.servers: Sequence[ContainerServer] = tuple(self._server(image, number, members) for number in identifiers)

    def _server(self, image: str, server_id: int, members: str) -> ContainerServer:
        port = free_port()
        container = (
            DockerContainer(image)
            .with_envs(**FAST_SETTINGS, ZOO_MY_ID=str(server_id), ZOO_SERVERS=members)
            .with_network(self._network)
            .with_network_aliases(f"zookeeper-{server_id}")
            .with_kwargs(labels=_OWNER, healthcheck={"test": ["NONE"]})  # wait_ready asks the server itself
        )
        # with_bind_ports binds every address of the machine, and a port that the engine chooses changes after a kill.
        container.ports[f"{CLIENT_PORT}/tcp"] = (LOOPBACK, port)  # type: ignore[assignment]
        return ContainerServer(container, server_id=server_id, port=port)

    @property
    def connect_string(self) -> str:
        """The addresses for clients, as ``host:port,host:port,host:port``."""
        return ",".join(server.connect_string for server in self.servers)

    def leader(self) -> ContainerServer | None:
        """The current leader, or ``None``."""
        return next((server for server in self.servers if server.mode() == "leader"), None)

    def start(self, timeout_s: float = 60.0) -> None:
        """Starts all servers that do not run, resumes the paused ones, and waits until each serves."""
        for server in self.servers:
            server.restore()
            server.launch()
        for server in self.servers:
            server.wait_ready(timeout_s)

    def remove(self) -> None:
        for server in self.servers:
            server.remove()
        self._network.remove()
        self._network._docker.client.close()

    def __enter__(self) -> Self:
        self._network.create()
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def remove_stale_containers() -> None:
    """Removes what killed test runs left behind: containers and networks whose process is gone."""
    engine = DockerClient().client
    try:
        for container in engine.containers.list(all=True, filters={"label": OWNER_LABEL}, ignore_removed=True):
            if _is_gone(container.labels[OWNER_LABEL]):
                container.remove(force=True, v=True)
        for network in engine.networks.list(filters={"label": OWNER_LABEL}):
            if _is_gone(network.attrs["Labels"][OWNER_LABEL]):
                network.remove()
    finally:
        engine.close()


def _is_gone(pid: str) -> bool:
    return not Path("/proc", pid).exists()
