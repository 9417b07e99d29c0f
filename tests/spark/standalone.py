"""A Spark standalone cluster on loopback, from the pip package alone. The master and each worker are processes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from kafka_coord.dev.cluster.ports import LOOPBACK, free_port
from kafka_coord.dev.cluster.process import ChildProcess
from tests import spark_jvm

SPARK_HOME = Path(pyspark.__file__).parent
_READY_S = 120.0
_JAVA = spark_jvm.options()


class Standalone:
    """A cluster. ``with`` starts the master and ``workers`` workers, and stops them and their executors at the end."""

    def __init__(self, directory: Path, *, workers: int, cores: int, memory: str = "1g") -> None:
        self._directory = directory
        self._port = free_port()
        self.url = f"spark://{LOOPBACK}:{self._port}"
        self.master = self._process(
            "master", "master.Master", ["--host", LOOPBACK, "--port", str(self._port), "--webui-port", str(free_port())]
        )
        self.workers = [
            self._process(
                f"worker-{number}",
                "worker.Worker",
                [
                    *("--host", LOOPBACK, "--webui-port", str(free_port()), "--cores", str(cores), "--memory", memory),
                    *("--work-dir", str(directory / f"worker-{number}"), self.url),
                ],
            )
            for number in range(1, workers + 1)
        ]

    def application(self, name: str, arguments: Sequence[str]) -> ChildProcess:
        """A driver that is not started yet: ``kafka-coord pipeline run …`` with one core on this cluster."""
        conf = {
            "spark.cores.max": "1",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "1",
            "spark.executor.extraJavaOptions": _JAVA,
            "spark.driver.extraJavaOptions": _JAVA,
        }
        given = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
        command = [sys.executable, "-m", "kafka_coord.cli.main", "pipeline", "run", *arguments]
        return ChildProcess(name, [*command, "--master", self.url, *given], self._directory / f"{name}.log")

    def executors(self, worker: ChildProcess) -> dict[int, str]:
        """Maps the process numbers of a worker's executors to the ids of their applications."""
        found = {}
        for pid in _session_of(worker):
            with suppress(OSError):
                command = Path("/proc", str(pid), "cmdline").read_text().split("\0")
                if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in command:
                    found[pid] = command[command.index("--app-id") + 1]
        return found

    def __enter__(self) -> Self:
        try:
            self.master.start()
            self.master.wait_until(lambda: "New state: ALIVE" in self.master.log_since_start(), _READY_S)
            for worker in self.workers:
                worker.start()
            for worker in self.workers:
                worker.wait_until(
                    lambda log=worker.log_since_start: "Successfully registered with master" in log(), _READY_S
                )
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for process in (*self.workers, self.master):
            process.terminate()
        for process in (*self.workers, self.master):
            process.stop(30.0)

    def _process(self, name: str, main: str, arguments: Sequence[str]) -> ChildProcess:
        # this runs the same class as `sbin/start-worker.sh` of a full Spark distribution
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}", *arguments]
        env = {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": _JAVA,
            "SPARK_NO_DAEMONIZE": "1",
        }
        return ChildProcess(name, command, self._directory / f"{name}.log", env=env)


def kill(pid: int) -> None:
    """Kills (``kill -9``) a process that :meth:`Standalone.executors` returned."""
    os.kill(pid, signal.SIGKILL)


def _session_of(process: ChildProcess) -> list[int]:
    """All processes in the session of a child process, which are those that it started."""
    leader = process.pid
    found = []
    for entry in Path("/proc").iterdir():
        if leader is not None and entry.name.isdigit():
            with suppress(OSError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[3]) == leader:
                    found.append(int(entry.name))
    return found
