"""Two Spark applications and a plain consumer share a group and a table. Processes of each kind are killed, and the
table has every record once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.errors import KafkaCoordError
from kafka_coord.groups.group import GroupDescription
from kafka_coord.groups.managed import describe_group
from kafka_coord.kafka.offsets import OffsetReader
from kafka_coord.spark.sinks import TableWriter
from kafka_coord.zk.session import connect
from tests.chaos.judge.tables import TABLES
from tests.chaos.parts import Part
from tests.end_to_end.parties import SESSION_MS
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("elected")

GROUP = "spark-applications"
PARTITIONS = 6


class Watching:
    """Continuously polls the group's description, as an operator sees it."""

    def __init__(self, zookeeper: str, bootstrap: str) -> None:
        self._store = connect(zookeeper)
        self._reader = OffsetReader(bootstrap, {})
        self._stop = threading.Event()
        self.seen: list[GroupDescription] = []
        self.failures: list[KafkaCoordError] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def now(self) -> GroupDescription:
        return describe_group(self._store, GROUP, self._reader.ranges)

    def owners(self) -> dict[str, int]:
        """The number of partitions that each consumer owns, or nothing until the group has settled."""
        found = self.now()
        owned = Counter(row.owner for row in found.offsets if row.owner)
        return dict(owned) if sum(owned.values()) == PARTITIONS and str(found.state) == "Stable" else {}

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(30)
        self._reader.close()
        self._store.close()

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            try:
                self.seen.append(self.now())
            except KafkaCoordError as failure:
                self.failures.append(failure)


@pytest.fixture
def applications(kafka_cluster, tmp_path) -> Iterator[dict[str, ChildProcess]]:
    """Starts processes, and stops those that a test leaves running."""
    made: dict[str, ChildProcess] = {}
    yield made
    for process in made.values():
        process.terminate()
    for process in made.values():
        process.stop(30.0)


def spark(kafka_cluster, directory: Path, topic: str, name: str) -> ChildProcess:
    part = Part(name, GROUP, (topic,), kind="spark", session_timeout_ms=SESSION_MS)
    arguments = ["--zookeeper", kafka_cluster.zookeeper, "--bootstrap", kafka_cluster.bootstrap_servers]
    arguments += ["--part", part.to_argument(), "--directory", str(directory)]
    command = [sys.executable, "-m", "tests.chaos.spark", *arguments]
    return ChildProcess(name, command, directory / f"{name}.log")


def plain(kafka_cluster, directory: Path, topic: str, name: str) -> ChildProcess:
    arguments = ["--zookeeper", kafka_cluster.zookeeper, "--group", GROUP, "--topic", topic]
    arguments += ["--consumer-id", name, "--session-timeout-ms", str(SESSION_MS)]
    arguments += ["--table", str(directory / TABLES / GROUP), "--batch", "2000"]
    command = [sys.executable, str(Path(__file__).with_name("plain_writer.py")), *arguments]
    return ChildProcess(name, command, directory / f"{name}.log")


def children(pid: int) -> dict[int, str]:
    """Maps each descendant process to its command line."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    found: dict[int, str] = {}
    below = {pid}
    while below := {child for child, parent in parents.items() if parent in below}:
        for child in below:
            try:
                found[child] = (Path("/proc") / str(child) / "cmdline").read_text().replace("\0", " ")
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


@pytest.mark.long
@pytest.mark.timeout(400)
def test_every_record_is_in_the_table_once_whichever_process_is_killed(
    kafka_cluster, applications, numbered, make_topic, tmp_path
):
    topic = make_topic(partitions=PARTITIONS)
    numbered(topic, PARTITIONS).burst(PARTITIONS)  # so that the brokers know the topic
    producer = numbered(topic, PARTITIONS, per_second=400).start()
    table = TableWriter(tmp_path / TABLES / GROUP, group=GROUP)
    made = {"spark-a": spark, "spark-b": spark, "plain": plain}
    for name, make in made.items():
        applications[name] = make(kafka_cluster, tmp_path, topic, name)
        applications[name].start()
    with closing(Watching(kafka_cluster.zookeeper, kafka_cluster.bootstrap_servers)) as watching:

        def all_own() -> bool:
            failed = [name for name, process in applications.items() if not process.running]
            assert not failed, "\n".join(applications[name].log_since_start()[-3_000:] for name in failed)
            try:
                return watching.owners().keys() == made.keys()
            except KafkaCoordError:
                return False

        def grows() -> None:
            rows = table.state().rows
            eventually(lambda: table.state().rows > rows + 1_000, within_s=90, every_s=0.2)

        eventually(all_own, within_s=150, every_s=0.2)
        watching.start()
        grows()

        killed = {"spark-a", "plain"}  # a Spark driver and a plain consumer
        for name in killed:
            applications[name].kill()
        eventually(lambda: watching.owners().keys() == made.keys() - killed, within_s=90, every_s=0.2)
        grows()
        for name in killed:
            applications[name].start()
        eventually(all_own, within_s=120, every_s=0.2)
        grows()

        pid = applications["spark-b"].pid
        assert pid is not None
        workers = [child for child, command in children(pid).items() if "pyspark.daemon" in command]
        assert workers, children(pid)
        for worker in workers:  # the executor computes in this process, so Spark repeats the task
            os.kill(worker, signal.SIGKILL)
        grows()

        leaving = applications.pop("spark-b")
        assert leaving.stop(60.0), "spark-b did not leave in time"
        eventually(lambda: watching.owners().keys() == applications.keys(), within_s=30, every_s=0.2)
        grows()

        written = Counter({partition: count + 1 for partition, count in producer.stop().items()})
        total = sum(written.values())
        eventually(lambda: table.covered().size >= total, within_s=120, every_s=0.2)
        eventually(lambda: all(row.lag == 0 for row in watching.now().offsets), within_s=60, every_s=0.2)
    for name in applications:
        assert applications[name].stop(40.0), f"{name} did not stop in time"
        assert applications[name].exit_code == 0, applications[name].log_since_start()[-3_000:]

    rows = table.read_arrow()
    held = Counter(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
    assert held == Counter((partition, offset) for partition, count in written.items() for offset in range(count))
    produced = [*range(PARTITIONS), *range(total - PARTITIONS)]
    assert sorted(int(value) for value in rows["value"].to_pylist()) == sorted(produced)
    assert watching.seen
    assert not watching.failures
    for description in watching.seen:
        assert len(description.offsets) == PARTITIONS
        assert all(row.end_offset is not None and row.lag is not None for row in description.offsets), description
