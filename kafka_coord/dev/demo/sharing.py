"""The demo's second group: Spark applications and a plain consumer share the flights, and write one table.

One Spark application is killed half-way, another joins; the table has to hold every record once, and the report a
third Spark makes of it has to say what the input says.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_coord.coordinator.steps import GroupState
from kafka_coord.dev.cluster.cluster import DevCluster
from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.dev.demo.expected import AirlineTotal
from kafka_coord.dev.demo.journal import now_ms
from kafka_coord.dev.demo.options import DemoOptions
from kafka_coord.dev.demo.timeline import Event, EventKind
from kafka_coord.dev.demo.verification import Check
from kafka_coord.dev.demo.view import PlainView, Step
from kafka_coord.dev.demo.watching import Look, Watcher
from kafka_coord.errors import ConsumerError, NotFound
from kafka_coord.model import TopicPartition
from kafka_coord.spark.jobs.delays import DelayReport, last_report
from kafka_coord.spark.jobs.streaming import RECORDS
from kafka_coord.spark.sinks import TableWriter
from kafka_coord.zk.store import Store

_SECONDS = 28.0
"""About how long the three take, had they all begun at once."""
_KILL = 0.35
"""How much of it is in the table when an application is killed."""
_PATIENCE_S = 240.0
_LIGHT = {
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
}
"""Settings of a Spark that has to be up soon, and is not kept long."""
_STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class Shared:
    """What came of it: what happened, what was verified, and the numbers by airline, airport, hour and route."""

    group: str
    events: tuple[Event, ...]
    checks: tuple[Check, ...]
    by_airline: Mapping[str, AirlineTotal]
    report: DelayReport
    owned: tuple[tuple[str, Mapping[str, int]], ...]
    """What each owned, in partitions, at moments the group was stable: (when, consumer → partitions)."""


class Sharing:
    """Plays it once, in ``directory``, on the topic the first group has read."""

    def __init__(
        self, options: DemoOptions, cluster: DevCluster, store: Store, directory: Path, view: PlainView
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._directory = directory
        self._view = view
        self._group = f"{options.group}-spark"
        self._pace = max(50, int(options.total / _SECONDS / 3))
        self._watcher = Watcher(store, cluster.bootstrap_servers, self._group, options.topic, lambda _look: None)
        self._table = TableWriter(directory / RECORDS, group=self._group)
        self._processes: dict[str, ChildProcess] = {}
        self._gone: set[str] = set()
        self._events: list[Event] = []
        self._owned: list[tuple[str, dict[str, int]]] = []

    def play(self, ends: Mapping[TopicPartition, int], expected: Mapping[str, AirlineTotal]) -> Shared:
        """All of it. ``ends`` are the topic's end offsets, ``expected`` the input's numbers. Raises
        :class:`~kafka_coord.errors.Timeout` where something does not happen, :class:`ConsumerError` where a process
        ends that nobody ended."""
        what = "Sharing: two Spark applications and a plain consumer, one group, one table"
        try:
            with self._view.step(what) as step, self._watcher:
                self._work(step)
                committed = self._committed()
                self._dismiss()
                step.outcome = f"{self._table.state().rows:,} rows in {len(self._table.state().pieces)} appends"
            with self._view.step("Reporting from the table, with Spark") as step:
                report = self._report()
                step.outcome = f"{report.summary.flights:,} flights"
            by_airline = {
                airline: AirlineTotal(found.flights, found.arrived, found.arrival_delay)
                for airline, found in report.totals("airlines").items()
            }
            checks = (_once(self._table, ends), _agrees(by_airline, expected), _told(committed, ends))
            return Shared(self._group, tuple(self._events), checks, by_airline, report, tuple(self._owned))
        finally:
            for process in self._processes.values():
                process.terminate()
            for process in self._processes.values():
                process.stop()

    # --- the acts ----------------------------------------------------------------------------------------------------

    def _work(self, step: Step) -> None:
        first, second = self._spark("spark-1"), self._spark("spark-2")
        self._note(EventKind.STARTED, f"two Spark applications, {first} and {second}, start")
        self._settled(step, {first, second})
        plain = self._plain("python-1")
        self._settled(step, {first, second, plain})
        self._note(EventKind.JOINED, f"{plain} joins, a consumer without Spark: the three share the partitions")
        third = self._spark("spark-3")  # takes a while to be there
        self._wait(step, lambda: self._rows() >= _KILL * self._options.total, "a good part written")
        self._gone.add(first)
        self._processes[first].kill()
        self._note(EventKind.KILLED, f"{first} is killed (kill -9) in the middle of a micro-batch, or so")
        self._settled(step, {second, plain, third})
        self._note(EventKind.JOINED, f"{third} joins; what {first} left undone is done once")
        self._wait(step, self._all_done, "everything written and committed")
        self._note(EventKind.FINISHED, f"all {self._options.total:,} records are in the table, and committed")

    def _spark(self, name: str) -> str:
        options = self._options
        arguments = ["pipeline", "run", "flights", "--zookeeper", self._cluster.zookeeper, "--group", self._group]
        arguments += ["--topics", options.topic, "--output", str(self._directory), "--consumer-id", name]
        arguments += ["--max-offsets", str(self._pace), "--master", "local[1]", *_conf()]
        return self._start(name, ["-m", "kafka_coord.cli.main", *arguments])

    def _plain(self, name: str) -> str:
        arguments = ["--zookeeper", self._cluster.zookeeper, "--group", self._group, "--topic", self._options.topic]
        arguments += ["--consumer-id", name, "--table", str(self._table.path), "--batch", str(self._pace)]
        arguments += ["--session-timeout-ms", str(self._options.session_timeout_ms)]
        return self._start(name, ["-m", "kafka_coord.dev.demo.colleague", *arguments])

    def _start(self, name: str, arguments: list[str]) -> str:
        (self._directory / "logs").mkdir(parents=True, exist_ok=True)
        session = {"KAFKA_COORD_ZOOKEEPER_SESSION_TIMEOUT_MS": str(self._options.session_timeout_ms)}
        log = self._directory / "logs" / f"{name}.out"
        process = ChildProcess(name, [sys.executable, *arguments], log, env=session)
        self._processes[name] = process
        process.start()
        return name

    def _dismiss(self) -> None:
        leaving = [process for name, process in self._processes.items() if name not in self._gone]
        self._gone.update(self._processes)
        for process in leaving:
            process.terminate()
        failed = [process.name for process in leaving if not process.stop(_STOP_S) or process.exit_code != 0]
        if failed:
            raise ConsumerError(f"{', '.join(failed)} did not leave cleanly: see the logs in {self._directory}")

    def _report(self) -> DelayReport:
        command = [sys.executable, "-m", "kafka_coord.cli.main", "pipeline", "report", "--output"]
        command += [str(self._directory), *_conf()]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_PATIENCE_S)
        if done.returncode != 0:
            raise ConsumerError(f"{' '.join(command[2:])} ended with {done.returncode}: {done.stderr}")
        return last_report(str(self._directory))

    # --- waiting -----------------------------------------------------------------------------------------------------

    def _wait(self, step: Step, condition: Callable[[], bool], what: str) -> None:
        def fulfilled(_look: Look) -> bool:
            self._check()
            step.progress(f"{self._rows():,} of {self._options.total:,} rows; waiting for {what}")
            return condition()

        self._watcher.wait_for(fulfilled, what, _PATIENCE_S)

    def _settled(self, step: Step, names: set[str]) -> None:
        found: dict[str, int] = {}

        def all_own() -> bool:
            nonlocal found
            try:
                description = self._watcher.describe()
            except NotFound:
                return False
            found = {}
            for row in description.offsets:
                if row.owner:
                    found[row.owner] = found.get(row.owner, 0) + 1
            return description.state is GroupState.STABLE and found.keys() == names

        self._wait(step, all_own, f"{', '.join(sorted(names))} with partitions of their own")
        self._owned.append((f"{self._rows():,} rows written", found))

    def _all_done(self) -> bool:
        if self._table.covered().size < self._options.total:
            return False
        return all(row.lag == 0 for row in self._watcher.describe().offsets)

    def _committed(self) -> dict[TopicPartition, int]:
        return {
            TopicPartition(row.topic, row.partition): row.committed_offset
            for row in self._watcher.describe().offsets
            if row.committed_offset is not None
        }

    def _rows(self) -> int:
        return self._table.state().rows

    def _check(self) -> None:
        for name, process in self._processes.items():
            if name not in self._gone and not process.running:
                tail = "\n".join(process.log_since_start().splitlines()[-5:])
                raise ConsumerError(f"{name} ended by itself with exit code {process.exit_code}: {process.log}\n{tail}")

    def _note(self, kind: EventKind, text: str) -> None:
        event = Event(now_ms(), kind, text)
        self._events.append(event)
        self._view.event(event)


def _conf() -> list[str]:
    return [word for key, value in _LIGHT.items() for word in ("--conf", f"{key}={value}")]


def _once(table: TableWriter, ends: Mapping[TopicPartition, int]) -> Check:
    rows: Any = table.read_arrow()
    seen: dict[TopicPartition, bytearray] = {tp: bytearray(end) for tp, end in ends.items()}
    differences: list[str] = []
    places = zip(rows["topic"].to_pylist(), rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)
    for topic, partition, offset in places:
        times = seen.get(TopicPartition(topic, partition), bytearray())
        if offset >= len(times):
            differences.append(f"{topic}-{partition} has no offset {offset}")
        else:
            times[offset] = min(times[offset] + 1, 255)
    for tp, times in sorted(seen.items()):
        wrong = [(offset, count) for offset, count in enumerate(times) if count != 1]
        if wrong:
            differences.append(f"{tp}: offset {wrong[0][0]} is there {wrong[0][1]} times, and {len(wrong) - 1} others")
    name = "Spark and plain consumer: every record is in the table exactly once"
    return Check(name, f"{rows.num_rows:,} rows", tuple(differences[:20]))


def _agrees(found: Mapping[str, AirlineTotal], expected: Mapping[str, AirlineTotal]) -> Check:
    nothing = AirlineTotal()
    differences = tuple(
        f"{airline}: the report says {found.get(airline, nothing)}, the input {expected.get(airline, nothing)}"
        for airline in sorted(found.keys() | expected.keys())
        if found.get(airline, nothing) != expected.get(airline, nothing)
    )
    minutes = sum(total.delay_minutes for total in found.values())
    return Check("Spark's report equals the input", f"{len(found)} airlines, {minutes:,} minutes of delay", differences)


def _told(committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Check:
    differences = tuple(
        f"{tp}: committed {committed.get(tp)}, the end is {end}"
        for tp, end in sorted(ends.items())
        if committed.get(tp) != end
    )
    return Check("what the table holds the group has committed", f"{sum(committed.values()):,} offsets", differences)
