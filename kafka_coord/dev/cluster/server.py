"""The common base of the ZooKeeper and Kafka servers, which are JVMs with their own directory and a fixed port."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kafka_coord.dev.cluster.class_archive import archive_flags, discard_archives, drop_archive, keep_archives
from kafka_coord.dev.cluster.ports import free_port, port_is_free, require_free
from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.errors import DevClusterError
from kafka_coord.spark.session import find_java

# For small servers, a fast start matters most, so they use one compiler tier and the simplest collector.
_JVM_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Djava.awt.headless=true")

# The exit codes (in Popen's form) of a JVM that crashes.
_CRASHES = {-signal.SIGABRT, -signal.SIGBUS, -signal.SIGSEGV}

_LOG4J = """\
status = error
name = kafka_coord.dev
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %-5p [%t] %c{{1.}}: %m%n
rootLogger.level = {level}
rootLogger.appenderRef.out.ref = out
# Otherwise, ten stack traces a second while a broker is down.
logger.send.name = kafka.controller.RequestSendThread
logger.send.level = error
logger.network.name = org.apache.kafka.clients.NetworkClient
logger.network.level = error
"""


@dataclass(frozen=True, slots=True)
class JvmProgram:
    """A Java program: ``flags`` for Java, the ``class_path`` (jars only), the main class and its ``arguments``."""

    flags: Sequence[str]
    class_path: Sequence[Path]
    main_class: str
    arguments: Sequence[str]


class Startable(ABC):
    """A server that a ``with`` block starts and stops. A failed start leaves nothing running."""

    @abstractmethod
    def start(self) -> None:
        """Starts the server and waits until it serves. Raises :class:`DevClusterError` on failure."""

    @abstractmethod
    def stop(self) -> None:
        """Stops the server cleanly."""

    @abstractmethod
    def kill(self) -> None:
        """Kills the server (SIGKILL), as a crash would."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class JvmServer(Startable):
    """A server that can be stopped or killed, and then restarted with the same data and port.

    If ``port`` is None, a free port is chosen at construction, and another one at the first start if that is taken by
    then. Any thread may call the methods.
    """

    def __init__(self, name: str, directory: Path, *, port: int | None, log_level: str) -> None:
        self.name = name
        self.directory = directory.absolute()
        self.port = free_port() if port is None else port
        self._port_may_change = port is None
        self._log_level = log_level
        self._process = ChildProcess(name, (), self.directory / f"{name}.log")

    @property
    def process(self) -> ChildProcess:
        """The child process, with its pid, identity and log."""
        return self._process

    @property
    def running(self) -> bool:
        """Whether the process exists, running or paused."""
        return self._process.running

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def log(self) -> Path:
        """The file to which all output goes."""
        return self._process.log

    def start(self, timeout_s: float = 60.0) -> None:
        """Starts the server and waits until it serves. Raises :class:`DevClusterError` after ``timeout_s``."""
        self.launch()
        self.wait_ready(timeout_s)

    def launch(self) -> None:
        """Starts the process without waiting, so that several servers can start at once. Does nothing if the process is
        already running."""
        if self.running:
            return
        if self._port_may_change and not port_is_free(self.port):
            self.port = free_port()
        require_free(self.port, self.name)
        self._port_may_change = False
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._process.command = self._command()
        except OSError as error:
            raise DevClusterError(f"{self.name}: its directory {self.directory} cannot be written: {error}") from error
        self._process.start()

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Waits until the server is serving. After ``timeout_s``, raises :class:`DevClusterError` with the end of the
        log."""
        self.wait_until(self.serving, timeout_s)

    def wait_until(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Like :meth:`wait_ready`, with the caller's condition."""
        try:
            self._process.wait_until(ready, timeout_s)
        except DevClusterError:
            if self._process.exit_code not in _CRASHES or not drop_archive(self._process.command):
                raise
            self.launch()
            self._process.wait_until(ready, timeout_s)

    def stop(self, timeout_s: float = 15.0) -> None:
        """Stops the server cleanly (SIGTERM), or kills it after ``timeout_s`` seconds."""
        if self._process.stop(timeout_s):
            keep_archives(self.directory)
        else:
            discard_archives(self.directory)

    def kill(self) -> None:
        """Kills the server (SIGKILL), as a crash would."""
        self._process.kill()
        discard_archives(self.directory)

    def pause(self) -> None:
        """Freezes the server. Its connections stay open, but it does not answer."""
        self._process.pause()

    def resume(self) -> None:
        """Resumes the server after :meth:`pause`."""
        self._process.resume()

    @abstractmethod
    def serving(self) -> bool:
        """Whether the server is up and answering. Never raises."""

    @abstractmethod
    def _prepare(self) -> JvmProgram:
        """Writes the configuration and returns the program. May raise OSError."""

    def _command(self) -> tuple[str, ...]:
        program = self._prepare()
        log4j = self.directory / "log4j2.properties"
        log4j.write_text(_LOG4J.format(level=self._log_level), encoding="ascii")
        java = find_java()
        kind = program.main_class.rpartition(".")[2].lower()
        return (
            str(java.executable),
            *_JVM_FLAGS,
            *archive_flags(kind, java, program.class_path, self.directory),
            f"-Dlog4j2.configurationFile={log4j}",
            *program.flags,
            "-cp",
            ":".join(map(str, program.class_path)),
            program.main_class,
            *program.arguments,
        )
