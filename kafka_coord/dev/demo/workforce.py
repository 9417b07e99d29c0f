"""Runs the demo's consumers, each in its own process."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Self

from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.dev.demo.journal import Journal, read_journal
from kafka_coord.dev.demo.options import DemoOptions, Kind
from kafka_coord.errors import ConsumerError

MODULES = {
    Kind.OWN: "kafka_coord.dev.demo.worker",
    Kind.CONSUMER: "kafka_coord.dev.demo.stock.worker",
    Kind.CLASSIC: "kafka_coord.dev.demo.stock.worker",
    Kind.SPARK: "kafka_coord.dev.demo.stream_worker",
}
"""The module that runs each kind of consumer as a process."""


class Workforce:
    """Starts, kills and stops consumers, which are named ``consumer-1``, ``consumer-2``, … in the order they start.
    Their journals and logs are in ``directory``. When the ``with`` block ends, all of them are stopped.
    """

    def __init__(self, directory: Path, zookeeper: str, bootstrap: str, options: DemoOptions) -> None:
        """``bootstrap`` lists the coordinators' addresses for consumers without ZooKeeper or for stock clients."""
        self._directory = directory
        self._zookeeper = zookeeper
        self._bootstrap = bootstrap
        self._options = options
        self._processes: dict[str, ChildProcess] = {}
        self._working: set[str] = set()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._processes)

    @property
    def working(self) -> tuple[str, ...]:
        """The consumers that have neither been killed nor left."""
        return tuple(name for name in self._processes if name in self._working)

    def hire(self) -> str:
        """Starts another consumer and returns its name."""
        number = len(self._processes) + 1
        name = f"consumer-{number}"
        kind = self._options.kind(number)
        way = {"bootstrap": self._bootstrap} if self._options.by_bootstrap(number) else {"zookeeper": self._zookeeper}
        self._directory.mkdir(parents=True, exist_ok=True)
        arguments = {
            **way,
            "group": self._options.group,
            "topic": self._options.topic,
            "consumer-id": name,
            "journal": self._journal(name),
            "records-per-s": f"{self._options.records_per_s:.1f}",
            "session-timeout-ms": self._options.session_ms(kind),
        }
        if kind is Kind.CONSUMER:
            arguments["group-protocol"] = kind
        command = [sys.executable, "-m", MODULES[kind]]
        for option, value in arguments.items():
            command += [f"--{option}", str(value)]
        process = ChildProcess(name, command, self._directory / f"{name}.log")
        self._processes[name] = process
        self._working.add(name)
        process.start()
        return name

    def kind(self, name: str) -> Kind:
        return self._options.kind(1 + list(self._processes).index(name))

    def kill(self, name: str) -> None:
        """Kills the consumer with ``kill -9``, and also the JVM of a Spark query."""
        self._working.discard(name)
        self._processes[name].kill(with_children=True)

    def dismiss(self, *names: str) -> None:
        """Makes these consumers leave the group cleanly, at the same time, and waits until they have. Raises
        :class:`ConsumerError` if one fails.
        """
        self._working.difference_update(names)
        end_cleanly([self._processes[name] for name in names])

    def check(self) -> None:
        """Raises :class:`ConsumerError` if a consumer has ended unexpectedly."""
        require_running(self._processes[name] for name in self.working)

    def journals(self) -> tuple[Journal, ...]:
        """Reads the journals that the consumers have written so far."""
        return tuple(read_journal(self._journal(name), name) for name in self._processes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        stop_all(self._processes.values())

    def _journal(self, name: str) -> Path:
        return self._directory / f"{name}.jsonl"


def require_running(processes: Iterable[ChildProcess]) -> None:
    """Raises :class:`ConsumerError`, with the end of the log, if one of the processes has ended."""
    for process in processes:
        if not process.running:
            tail = "\n".join(process.log_since_start().splitlines()[-5:])
            code = process.exit_code
            raise ConsumerError(f"{process.name} ended unexpectedly with exit code {code}; see {process.log}\n{tail}")


def end_cleanly(processes: Sequence[ChildProcess], timeout_s: float = 15.0) -> None:
    """Terminates the processes at the same time, and waits. Raises :class:`ConsumerError` if one of them fails."""
    for process in processes:
        process.terminate()
    failed = [process for process in processes if not process.stop(timeout_s) or process.exit_code != 0]
    if failed:
        names = ", ".join(process.name for process in failed)
        raise ConsumerError(f"{names} did not leave cleanly; see the logs in {failed[0].log.parent}")


def stop_all(processes: Collection[ChildProcess]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.stop()
