"""What the embedded ZooKeeper and Kafka servers have in common: a JVM in a directory of its own, on a port it keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from kafka_coord.dev.ports import free_port, port_is_free, require_free
from kafka_coord.dev.process import ChildProcess
from kafka_coord.errors import DevClusterError

# Kafka and ZooKeeper of this size are bound by start-up, so: one compiler tier, the collector with least set-up.
JVM_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Djava.awt.headless=true")

_LOG4J = """\
status = error
name = kafka_coord.dev
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %-5p [%t] %c{{1.}}: %m%n
rootLogger.level = {level}
rootLogger.appenderRef.out.ref = out
"""


def log4j_configuration(level: str) -> str:
    """A log4j2 configuration (properties format) that prints ``level`` and above to the standard output."""
    return _LOG4J.format(level=level)


class JvmServer(ABC):
    """A server that can be started, ended in any way, and started again on the same data and port.

    ``port`` None means any free one, chosen once. All verbs may be called from any thread.
    """

    def __init__(self, name: str, directory: Path, *, port: int | None, outlive_parent: bool) -> None:
        self.name = name
        self.directory = directory.absolute()
        self.port = free_port() if port is None else port
        self._port_may_change = port is None
        self._process = ChildProcess(name, (), self.directory / f"{name}.log", outlive_parent=outlive_parent)

    @property
    def process(self) -> ChildProcess:
        """The child process, for its pid, identity and log."""
        return self._process

    @property
    def running(self) -> bool:
        """Whether its process runs (a paused one does)."""
        return self._process.running

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._process.pid

    @property
    def log(self) -> Path:
        """The file all it prints is appended to."""
        return self._process.log

    def start(self, timeout_s: float = 60.0) -> None:
        """Launch it and wait until it serves. Raises :class:`DevClusterError` if it does not within ``timeout_s``."""
        self.launch()
        self.wait_ready(timeout_s)

    def launch(self) -> None:
        """Start the process without waiting for it, so that several start at once. Nothing if it runs."""
        if self.running:
            return
        if self._port_may_change and not port_is_free(self.port):
            self.port = free_port()
        require_free(self.port, self.name)
        self._port_may_change = False
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._process.command = tuple(self._prepare())
        except OSError as error:
            raise DevClusterError(f"{self.name}: its directory {self.directory} cannot be written: {error}") from error
        self._process.start()

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until it serves. Raises :class:`DevClusterError` with the end of its log if it does not."""
        self._process.wait_until(self.serving, timeout_s)

    def stop(self, timeout_s: float = 15.0) -> None:
        """Let it end cleanly (SIGTERM), by SIGKILL if that takes longer than ``timeout_s`` seconds."""
        self._process.stop(timeout_s)

    def kill(self) -> None:
        """End it as a crash would (SIGKILL)."""
        self._process.kill()

    def pause(self) -> None:
        """Freeze it: connections stay open, nothing is answered."""
        self._process.pause()

    def resume(self) -> None:
        """Let it go on after :meth:`pause`."""
        self._process.resume()

    def restart(self, timeout_s: float = 60.0) -> None:
        """Stop it cleanly if it runs, and start it on the same data and port."""
        self.stop()
        self.start(timeout_s)

    @abstractmethod
    def serving(self) -> bool:
        """Whether it answers as a server that does its work. Never raises for a server that does not."""

    @abstractmethod
    def _prepare(self) -> Sequence[str]:
        """Write its configuration and return the command to run. May raise OSError."""
