"""Tests of the job ``flights`` on a Spark standalone cluster: two applications and a plain consumer in one group."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_coord import Consumer
from kafka_coord.dev.cluster.flights import read_flights
from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.dev.jobs.flights import as_arrow
from kafka_coord.dev.jobs.streaming import RECORDS
from kafka_coord.errors import NotFound
from kafka_coord.groups.managed import describe_group
from kafka_coord.kafka.librdkafka import produce
from kafka_coord.spark.sinks import TableWriter
from kafka_coord.zk.session import connect
from tests.spark.standalone import Standalone, kill
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("elected")

GROUP = "cluster"
PARTITIONS = 6
LONG_S = 240.0
"""The time limit (s) for the start of a driver and one of its executors on a busy machine."""


class PlainWriter:
    """A consumer without Spark, in a thread, that writes its records to the table of the applications."""

    def __init__(self, zookeeper: str, topic: str, table: Path) -> None:
        self._given = {"zookeeper": zookeeper, "topics": [topic], "group": GROUP, "consumer_id": "plain"}
        self._table = TableWriter(table, group=GROUP)
        self._stop = threading.Event()
        self.written = 0
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="plain-writer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        try:
            with Consumer(**self._given, auto_offset_reset="earliest", session_timeout_ms=10_000) as consumer:
                while not self._stop.is_set():
                    if records := consumer.consume(500, 0.2):
                        self.written += self._table.append_arrow(as_arrow(records)).rows
        except BaseException as failure:  # noqa: BLE001  told by the test
            self.failure = failure


class Group:
    """The group as operators see it. Records are written to its topic."""

    def __init__(self, zookeeper: str, bootstrap: str, topic: str, table: Path) -> None:
        self._store = connect(zookeeper)
        self._bootstrap, self.topic, self._table = bootstrap, topic, TableWriter(table, group=GROUP)
        self._flights = read_flights()
        self.fed = 0

    def feed(self, flights: int) -> None:
        self.fed += produce(self._bootstrap, self.topic, itertools.islice(self._flights, flights))

    def owns(self, consumer: str) -> int:
        try:
            found = describe_group(self._store, GROUP, None)
        except NotFound:
            return 0  # the group has no members yet
        return next((len(member.owned) for member in found.members if member.consumer == consumer), 0)

    def settles(self, *consumers: str) -> None:
        """Waits until these consumers share all partitions evenly."""
        share = PARTITIONS // len(consumers)
        eventually(lambda: all(self.owns(name) == share for name in consumers), within_s=LONG_S, every_s=0.3)

    def is_written(self) -> None:
        """Waits until the table has all records that were produced."""
        eventually(lambda: self._table.state().rows >= self.fed, within_s=LONG_S, every_s=0.3)

    def close(self) -> None:
        self._store.close()


@pytest.fixture
def group(kafka_cluster, make_topic, tmp_path) -> Iterator[Group]:
    topic = make_topic(partitions=PARTITIONS)
    found = Group(kafka_cluster.zookeeper, kafka_cluster.bootstrap_servers, topic, tmp_path / "out" / RECORDS)
    yield found
    found.close()


@pytest.fixture
def cluster(tmp_path) -> Iterator[Standalone]:
    with Standalone(tmp_path, workers=2, cores=2, memory="1200m") as found:
        yield found


@pytest.fixture
def start(cluster, kafka_cluster, group, tmp_path):
    """Starts applications, and stops those that a test leaves running."""
    made: list[ChildProcess] = []

    def one(name: str) -> ChildProcess:
        arguments = ["flights", "--zookeeper", kafka_cluster.zookeeper, "--group", GROUP, "--topics", group.topic]
        arguments += ["--output", str(tmp_path / "out"), "--consumer-id", name, "--trigger", "500 milliseconds"]
        made.append(cluster.application(name, arguments))
        made[-1].start()
        return made[-1]

    yield one
    for process in made:
        process.terminate()
    for process in made:
        process.stop(60.0)


@pytest.mark.long
@pytest.mark.timeout(1_500)
def test_every_record_is_in_the_table_once_after_moves_and_kills_of_an_executor_and_a_worker(
    cluster, start, group, kafka_cluster, tmp_path
):
    one, two = start("spark-1"), start("spark-2")
    group.feed(600)
    group.settles("spark-1", "spark-2")
    group.is_written()

    plain = PlainWriter(kafka_cluster.zookeeper, group.topic, tmp_path / "out" / RECORDS)
    try:
        group.settles("spark-1", "spark-2", "plain")
        group.feed(600)
        group.is_written()

        group.feed(600)
        executors = [pid for worker in cluster.workers for pid in cluster.executors(worker)]
        assert len(executors) == 2, "each application must have one executor"
        kill(executors[0])
        group.feed(600)
        group.is_written()

        group.feed(600)
        next(worker for worker in cluster.workers if cluster.executors(worker)).kill()
        group.feed(600)
        group.is_written()
        assert one.running
        assert two.running

        one.stop(60.0)
        assert one.exit_code == 0, one.log_since_start()
        group.settles("spark-2", "plain")
        group.feed(600)
        group.is_written()
    finally:
        plain.stop()
    assert plain.failure is None
    assert plain.written > 0
    group.settles("spark-2")
    two.stop(60.0)
    assert two.exit_code == 0, two.log_since_start()

    rows = TableWriter(tmp_path / "out" / RECORDS, group=GROUP).read_arrow()
    found = Counter(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
    assert set(found.values()) == {1}
    assert len(found) == group.fed
    fed = Counter(
        (flight["carrier"], flight["flight"])
        for flight in (json.loads(record.value) for record in itertools.islice(read_flights(), group.fed))
    )
    assert Counter(zip(rows["carrier"].to_pylist(), rows["flight"].to_pylist(), strict=True)) == fed
    assert set(rows["problem"].to_pylist()) == {None}
