"""Runs the demo's second group, in which Spark queries and a plain consumer share a topic and write one table.

It runs alongside the first group. ``spark-1`` is a separate application, which is killed midway. ``spark-2`` and the
later ``spark-3`` are queries of another application, which also writes the report. The table must have every record
once, and the report must match the input.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_coord.dev.cluster.cluster import DevCluster
from kafka_coord.dev.cluster.flights import read_flights
from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.dev.demo.expected import AirlineTotal, count_input, side_by_side
from kafka_coord.dev.demo.journal import now_ms
from kafka_coord.dev.demo.options import DemoOptions
from kafka_coord.dev.demo.queries import LIGHT
from kafka_coord.dev.demo.timeline import Event, EventKind
from kafka_coord.dev.demo.verification import Check, all_committed, all_written
from kafka_coord.dev.demo.view import PlainView
from kafka_coord.dev.demo.watching import GroupView, Watcher
from kafka_coord.dev.demo.workforce import end_cleanly, require_running, stop_all
from kafka_coord.dev.jobs.delays import DelayReport, last_report
from kafka_coord.dev.jobs.streaming import RECORDS
from kafka_coord.errors import ConsumerError
from kafka_coord.kafka.librdkafka import produce
from kafka_coord.model import TopicPartition
from kafka_coord.spark.sinks import TableWriter
from kafka_coord.zk.store import Store

_SECONDS = 10.5
"""How long, in seconds, three members take to read the whole topic."""
_KILL = 0.35
"""The share of the topic that must be in the table before an application is killed."""
_PATIENCE_S = 240.0
_STOP_S = 120.0


@dataclass(frozen=True, slots=True)
class Shared:
    """The result: the events, the checks, and the report by airline, airport, hour and route."""

    group: str
    topic: str
    events: tuple[Event, ...]
    checks: tuple[Check, ...]
    by_airline: Mapping[str, AirlineTotal]
    report: DelayReport
    owned: tuple[tuple[str, Mapping[str, int]], ...]
    """(when, consumer → number of partitions) for each moment at which the group was stable."""


class Sharing:
    """Plays the second group's scenario once in ``directory``, while the cluster serves the first group."""

    def __init__(
        self, options: DemoOptions, cluster: DevCluster, store: Store, directory: Path, view: PlainView
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._directory = directory
        self._view = view
        self._records = min(options.shared_records, options.records)
        self._pace = max(50, int(self._records / _SECONDS / 3))
        self._watcher = Watcher(
            store, cluster.bootstrap_servers, options.spark_group, options.spark_topic, lambda _view: None
        )
        self._table = TableWriter(directory / RECORDS, group=options.spark_group)
        self._processes: dict[str, ChildProcess] = {}
        self._gone: set[str] = set()
        self._given_up = threading.Event()
        self._events: list[Event] = []
        self._owned: list[tuple[str, dict[str, int]]] = []

    @contextmanager
    def alongside(self) -> Iterator[Future[Shared]]:
        """Plays the scenario on its own thread while the block runs. When the block ends, stops whatever is still
        running."""
        with ThreadPoolExecutor(1, thread_name_prefix="demo-sharing") as pool:
            result = pool.submit(self._play)
            try:
                yield result
            finally:
                self._given_up.set()

    # --- the acts, on the thread -------------------------------------------------------------------------------------

    def _play(self) -> Shared:
        """Plays the whole scenario. Raises :class:`~kafka_coord.errors.Timeout` if an expected event does not happen,
        and :class:`ConsumerError` if a process ends unexpectedly."""
        try:
            first, host = self._spark("spark-1"), self._queries("spark-2", "spark-3")
            self._load()
            with self._watcher:
                self._work(first, host)
                ends, committed = self._offsets()
            self._say("Spark summarises the table")
            self._dismiss()
            report = last_report(str(self._directory))
            by_airline = {
                airline: AirlineTotal(found.flights, found.arrived, found.arrival_delay)
                for airline, found in report.totals("airlines").items()
            }
            checks = (
                all_written(ends, self._records, "Spark's topic holds every written record"),
                _once(self._table, ends),
                _agrees(by_airline, count_input(self._records)),
                all_committed(ends, committed, self._records, "the group has committed every record in the table"),
            )
            group, topic = self._options.spark_group, self._options.spark_topic
            self._say("")
            return Shared(group, topic, tuple(self._events), checks, by_airline, report, tuple(self._owned))
        finally:
            stop_all(self._processes.values())

    def _load(self) -> None:
        """Creates the topic and writes its records, while the Spark applications start."""
        servers, topic = self._cluster.bootstrap_servers, self._options.spark_topic
        TopicAdmin(servers).create(topic, self._options.shared_partitions, replication=min(self._options.brokers, 2))
        produce(servers, topic, read_flights(self._records))

    def _work(self, first: str, host: str) -> None:
        self._note(EventKind.STARTED, "two Spark applications start, with the queries spark-1 and spark-2")
        self._wait_until_settled({"spark-1", "spark-2"})
        plain = self._plain("python-1")
        self._wait_until_settled({"spark-1", "spark-2", plain})
        self._note(EventKind.JOINED, f"{plain}, a consumer without Spark, joins: the three share the partitions")
        self._wait(lambda: self._rows() >= _KILL * self._records, "enough rows to be written")
        self._gone.add(first)
        self._processes[first].kill()
        self._note(EventKind.KILLED, f"{first} is killed (kill -9) while it is running")
        self._processes[host].signal(signal.SIGUSR1)
        self._wait_until_settled({"spark-2", plain, "spark-3"})
        self._note(EventKind.JOINED, f"spark-3 joins; the records that {first} left behind are processed once")
        self._wait(self._all_done, "everything to be written and committed")
        self._note(EventKind.FINISHED, f"all {self._records:,} records are in Spark's table, and committed")

    def _spark(self, name: str) -> str:
        """Starts a Spark application with one query, the way a user would."""
        arguments = ["pipeline", "run", "flights", "--zookeeper", self._cluster.zookeeper]
        arguments += ["--group", self._options.spark_group, "--topics", self._options.spark_topic]
        arguments += ["--output", str(self._directory), "--consumer-id", name, "--max-offsets", str(self._pace)]
        arguments += ["--master", "local[1]"]
        for key, value in LIGHT.items():
            arguments += ["--conf", f"{key}={value}"]
        return self._start(name, ["-m", "kafka_coord.cli.main", *arguments])

    def _queries(self, first: str, second: str) -> str:
        """Starts a Spark application with two queries. The second query begins later."""
        arguments = ["-m", "kafka_coord.dev.demo.queries", *self._member(), "--output", str(self._directory)]
        arguments += ["--first", first, "--second", second, "--max-offsets", str(self._pace)]
        return self._start(f"{first}-{second}", arguments)

    def _plain(self, name: str) -> str:
        arguments = ["-m", "kafka_coord.dev.demo.colleague", *self._member(), "--consumer-id", name]
        arguments += ["--table", str(self._table.path), "--batch", str(self._pace)]
        return self._start(name, arguments)

    def _member(self) -> list[str]:
        return [
            *("--zookeeper", self._cluster.zookeeper),
            *("--group", self._options.spark_group),
            *("--topic", self._options.spark_topic),
            *("--session-timeout-ms", str(self._options.session_timeout_ms)),
        ]

    def _start(self, name: str, arguments: list[str]) -> str:
        session = {"KAFKA_COORD_ZOOKEEPER_SESSION_TIMEOUT_MS": str(self._options.session_timeout_ms)}
        log = self._directory / "logs" / f"{name}.out"
        process = ChildProcess(name, [sys.executable, *arguments], log, env=session)
        self._processes[name] = process
        process.start()
        return name

    def _dismiss(self) -> None:
        leaving = [process for name, process in self._processes.items() if name not in self._gone]
        self._gone.update(self._processes)
        end_cleanly(leaving, _STOP_S)

    # --- waiting -----------------------------------------------------------------------------------------------------

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        def fulfilled(_view: GroupView) -> bool:
            self._check()
            self._say(f"{self._rows():,} of {self._records:,} rows; waiting for {what}")
            return condition()

        self._watcher.wait_for(fulfilled, what, _PATIENCE_S)

    def _wait_until_settled(self, names: set[str]) -> None:
        found = Counter[str]()

        def all_own() -> bool:
            nonlocal found
            now = self._watcher.now()
            found = Counter(now.owners.values())
            return now.stable and found.keys() == names

        self._wait(all_own, f"{', '.join(sorted(names))} to own partitions")
        self._owned.append((f"{self._rows():,} rows written", found))

    def _all_done(self) -> bool:
        if self._table.covered().size < self._records:
            return False
        return all(row.lag == 0 for row in self._watcher.describe().offsets)

    def _offsets(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Reads the end offset and the committed offset of each partition."""
        rows = self._watcher.describe().offsets
        return (
            {row.tp: row.end_offset for row in rows if row.end_offset is not None},
            {row.tp: row.committed_offset for row in rows if row.committed_offset is not None},
        )

    def _rows(self) -> int:
        return self._table.state().rows

    def _check(self) -> None:
        if self._given_up.is_set():
            raise ConsumerError("interrupted, because the demo is ending")
        require_running(process for name, process in self._processes.items() if name not in self._gone)

    def _say(self, doing: str) -> None:
        self._view.aside = f"{self._options.spark_group}: {doing}" if doing else ""

    def _note(self, kind: EventKind, text: str) -> None:
        event = Event(now_ms(), kind, text)
        self._events.append(event)
        self._view.event(event)


def _once(table: TableWriter, ends: Mapping[TopicPartition, int]) -> Check:
    rows: Any = table.read_arrow()
    seen: dict[TopicPartition, bytearray] = {tp: bytearray(end) for tp, end in ends.items()}
    differences: list[str] = []
    places = zip(rows["topic"].to_pylist(), rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)
    for topic, partition, offset in places:
        times = seen.get(TopicPartition(topic, partition), bytearray())
        if offset >= len(times):
            differences.append(f"{topic}-{partition}: offset {offset} is missing")
        else:
            times[offset] = min(times[offset] + 1, 255)
    for tp, times in sorted(seen.items()):
        wrong = [(offset, count) for offset, count in enumerate(times) if count != 1]
        if wrong:
            differences.append(
                f"{tp}: offset {wrong[0][0]} appears {wrong[0][1]} times, not once; {len(wrong) - 1} more are wrong"
            )
    name = "Spark and plain consumer: every record is in the table exactly once"
    return Check(name, f"{rows.num_rows:,} rows", tuple(differences[:20]))


def _agrees(found: Mapping[str, AirlineTotal], expected: Mapping[str, AirlineTotal]) -> Check:
    differences = tuple(
        f"{airline}: the report says {seen}, the input {there}"
        for airline, seen, there in side_by_side(found, expected)
        if seen != there
    )
    minutes = sum(total.delay_minutes for total in found.values())
    return Check(
        "Spark's report matches the input", f"{len(found)} airlines, {minutes:,} minutes of delay", differences
    )
