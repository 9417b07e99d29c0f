"""Runs a real ZooKeeper on loopback: one server, or an ensemble."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kafka_coord.dev.cluster.jars import ZOOKEEPER, class_path
from kafka_coord.dev.cluster.ports import LOOPBACK, free_port
from kafka_coord.dev.cluster.server import JvmProgram, JvmServer, Startable
from kafka_coord.errors import DevClusterError

_MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """The options that differ between ZooKeeper servers for daily use and for tests.

    The server grants session timeouts between ``min_session_ms`` (default: two ticks) and ``max_session_ms``.
    ``properties`` are additional lines of ``zoo.cfg``, and ``jvm_properties`` are additional ``-D`` flags.
    """

    tick_ms: int = 500
    min_session_ms: int | None = None
    max_session_ms: int = 60_000
    heap_mb: int = 64
    log_level: str = "WARN"
    properties: Mapping[str, str] = field(default_factory=dict)
    jvm_properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EnsemblePeer:
    """The ports of one server in the configuration of an ensemble."""

    server_id: int
    quorum_port: int
    election_port: int


class ZooKeeperServer(JvmServer):
    """One ZooKeeper server in ``directory``. A ``with`` block starts and stops it. The data is kept in the directory.

    The server does not sync writes to disk, so they survive a ``kill -9`` of the server, but not a crash of the
    machine.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        settings: ZooKeeperSettings | None = None,
        server_id: int = 1,
        ensemble: Sequence[EnsemblePeer] = (),
    ) -> None:
        super().__init__(
            f"zookeeper-{server_id}", directory, port=port, log_level=(settings or ZooKeeperSettings()).log_level
        )
        self.settings = settings or ZooKeeperSettings()
        self.server_id = server_id
        self._ensemble = tuple(ensemble)

    @property
    def connect_string(self) -> str:
        """The address for clients, as ``host:port``."""
        return f"{LOOPBACK}:{self.port}"

    def mode(self) -> str | None:
        """``standalone``, ``leader`` or ``follower``, or None while it does not serve."""
        return server_mode(self.port)

    def serving(self) -> bool:
        return self.mode() is not None

    def _prepare(self) -> JvmProgram:
        data = self.directory / "data"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(f"{self.server_id}\n", encoding="ascii")
        config = self.directory / "zoo.cfg"
        config.write_text("".join(f"{key}={value}\n" for key, value in self._configuration(data).items()), "utf-8")
        flags = (
            f"-Xmx{self.settings.heap_mb}m",
            "-Dzookeeper.forceSync=no",
            "-Dzookeeper.preAllocSize=4096",  # kB; the default of 64 MB per log file fills small disks
            *(f"-D{key}={value}" for key, value in self.settings.jvm_properties.items()),
        )
        return JvmProgram(flags, class_path(ZOOKEEPER), _MAIN_CLASS, [str(config)])

    def _configuration(self, data: Path) -> dict[str, str]:
        settings = self.settings
        lines = {
            "tickTime": str(settings.tick_ms),
            "initLimit": "20",
            "syncLimit": "10",
            "dataDir": str(data),
            "clientPort": str(self.port),
            "clientPortAddress": LOOPBACK,
            "maxClientCnxns": "0",
            "minSessionTimeout": str(settings.min_session_ms or 2 * settings.tick_ms),
            "maxSessionTimeout": str(settings.max_session_ms),
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            "autopurge.snapRetainCount": "3",
            "autopurge.purgeInterval": "1",
        }
        for peer in self._ensemble:
            lines[f"server.{peer.server_id}"] = f"{LOOPBACK}:{peer.quorum_port}:{peer.election_port}"
        return lines | dict(settings.properties)


class ZooKeeperEnsemble(Startable):
    """Several ZooKeeper servers that replicate each other, each in its own directory below ``directory``."""

    def __init__(
        self,
        directory: Path,
        *,
        servers: int = 3,
        ports: Sequence[int | None] = (),
        settings: ZooKeeperSettings | None = None,
    ) -> None:
        peers = [EnsemblePeer(number, free_port(), free_port()) for number in range(1, servers + 1)]
        wanted = list(ports) or [None] * servers
        if len(wanted) != servers:
            raise DevClusterError(
                f"{len(wanted)} ports given for {servers} ZooKeeper servers; give one port per server, or none"
            )
        self.servers = tuple(
            ZooKeeperServer(
                directory / f"zookeeper-{peer.server_id}",
                port=port,
                settings=settings,
                server_id=peer.server_id,
                ensemble=peers if servers > 1 else (),
            )
            for peer, port in zip(peers, wanted, strict=True)
        )

    @property
    def connect_string(self) -> str:
        """The addresses for clients, as ``host:port,host:port,…``."""
        return ",".join(server.connect_string for server in self.servers)

    def leader(self) -> ZooKeeperServer | None:
        """Returns the current leader (or the standalone server), or None if there is none."""
        return next((server for server in self.servers if server.mode() in {"leader", "standalone"}), None)

    def start(self, timeout_s: float = 60.0) -> None:
        """Starts the servers that are not running and waits until each serves."""
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.wait_ready(timeout_s)

    def stop(self) -> None:
        """Stops all servers, the leader last, to avoid an election."""
        leader = self.leader() if any(server.running for server in self.servers) else None
        for server in self.servers:
            if server is not leader:
                server.stop()
        if leader is not None:
            leader.stop()

    def kill(self) -> None:
        """Kills all servers, as a crash would."""
        for server in self.servers:
            server.kill()


def server_mode(port: int) -> str | None:
    """Returns ``standalone``, ``leader`` or ``follower``, or None if no ZooKeeper serves on loopback ``port``."""
    for line in four_letter_word(port, "srvr").splitlines():
        if line.startswith("Mode:"):
            mode = line.partition(":")[2].strip()
            return mode if mode in {"standalone", "leader", "follower"} else None
    return None


def ephemeral_exists(connect_string: str, path: str) -> bool | None:
    """Returns whether the ephemeral znode ``path`` (below the chroot of ``connect_string``) exists. Its owner may be
    dead if the session has not expired yet. Returns None if no server on loopback answers.
    """
    hosts, slash, chroot = connect_string.partition("/")
    wanted = f"{slash}{chroot}".rstrip("/") + path
    found = None
    for host in hosts.split(","):
        # Without a session, which would linger. Only the standalone server or the leader knows the ephemerals.
        _, told, answer = four_letter_word(int(host.rpartition(":")[2]), "dump").partition("Sessions with Ephemerals")
        if any(line.strip() == wanted for line in answer.splitlines()):
            return True
        if told:
            found = False
    return found


def await_no_ephemeral(connect_string: str, path: str, timeout_s: float) -> bool:
    """Waits until the ephemeral znode ``path`` of a killed process has expired. Returns False if it still exists after
    the timeout. If ZooKeeper never answers, returns True, because the new process will report that itself.
    """
    deadline = time.monotonic() + timeout_s
    while (found := ephemeral_exists(connect_string, path)) is not False:
        if time.monotonic() >= deadline:
            return found is None
        time.sleep(_POLL_S)
    return True


def four_letter_word(port: int, word: str, timeout_s: float = 5.0) -> str:
    """Returns the answer of the ZooKeeper on loopback ``port`` to ``word`` (``srvr``, ``ruok``, …), or ""."""
    chunks = bytearray()
    with _quiet_connection(port, timeout_s) as connection:
        if connection is None:
            return ""
        try:
            connection.sendall(word.encode("ascii"))
            while chunk := connection.recv(65_536):
                chunks += chunk
        except OSError:
            return ""
    return chunks.decode("utf-8", errors="replace")


@contextmanager
def _quiet_connection(port: int, timeout_s: float) -> Iterator[socket.socket | None]:
    try:
        connection = socket.create_connection((LOOPBACK, port), timeout=timeout_s)
    except OSError:
        yield None
        return
    with connection:
        yield connection
