"""A short run with the members, journals and judge of ``scripts/chaos --clients kafka``, on this folder's cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.grouplog.manager import partition_of
from tests.chaos.clients.following import LogFollower
from tests.chaos.journal import (
    Committed,
    EventWriter,
    Kind,
    Run,
    Setup,
    Started,
    read_consumers,
    read_produced,
    write_run,
)
from tests.chaos.judge.commits import commits
from tests.chaos.judge.evidence import Records
from tests.chaos.judge.findings import Status
from tests.chaos.judge.reading import nothing_missing, order
from tests.chaos.parts import CONFLUENT, PREFIX, Part, groups_of
from tests.frontends.kafka.conftest import Front
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
TOPIC, PARTITIONS = f"{PREFIX}short", 4
PARTS = tuple(
    Part(f"short-{n}", "short", (TOPIC,), kind=CONFLUENT, commit_every=20, strategy=strategy, static=n == 2)
    for n, strategy in ((1, "cooperative-sticky"), (2, "cooperative-sticky"))
)
Start = Callable[..., ChildProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a module of the chaos runs as a process, with these arguments."""
    started: list[ChildProcess] = []

    def make(name: str, module: str, *arguments: str) -> ChildProcess:
        command = [sys.executable, "-m", f"tests.chaos.{module}", "--directory", str(tmp_path), *arguments]
        process = ChildProcess(name, command, tmp_path / f"{name}.log")
        process.start()
        started.append(process)
        return process

    yield make
    for process in started:
        process.kill()


@pytest.fixture
def follower(front: Front, tmp_path: Path) -> Iterator[LogFollower]:
    """Records the groups log for the judge."""
    started = LogFollower(front.cluster.bootstrap_servers, tmp_path)
    started.start()
    yield started
    started.close()


def held(directory: Path) -> int:
    """How many partitions all members together have started."""
    return sum(
        len(line.offsets) for one in read_consumers(directory) for line in one.lines if isinstance(line, Started)
    )


def acknowledged(directory: Path) -> int:
    return sum(isinstance(line, Committed) for one in read_consumers(directory) for line in one.lines)


def end_term(front: Front, partition: int) -> None:
    """The instance gives up the partition of the log, and claims it again at its next check."""
    listener = front.listeners[front.listeners[1].instances.leaders[partition]]
    term = listener.manager.terms[partition]
    assert listener._loop is not None
    listener._loop.call_soon_threadsafe(listener.manager.resign, partition, "a test wants it")
    eventually(lambda: listener.manager.terms.get(partition) not in {None, term})


def test_no_acknowledged_commit_is_lost_when_a_member_is_killed_and_the_group_is_loaded_anew(
    front: Front, tmp_path: Path, start: Start, follower: LogFollower
) -> None:
    TopicAdmin(front.cluster.bootstrap_servers).create(TOPIC, PARTITIONS, replication=3)
    setup = Setup(2, 0, {}, {"consumer": 6_000}, 60_000)
    write_run(tmp_path, Run(1, 0.2, "", time.monotonic(), 0.0, setup, groups_of(PARTS), (), clients="kafka"))
    producer = start("producer", "producing", "--bootstrap", front.bootstrap, "--per-s", "200")

    def member(part: Part) -> ChildProcess:
        arguments = ("--zookeeper", "none", "--bootstrap", front.bootstrap, "--part", part.to_argument())
        return start(part.name, "clients.confluent", *arguments)

    members = [member(part) for part in PARTS]
    eventually(lambda: held(tmp_path) >= PARTITIONS and acknowledged(tmp_path) > 10, within_s=60)

    with EventWriter(tmp_path) as events:
        events.write(Kind.KILL, "consumer:short-2", pid=members[1].pid)
        members[1].kill()
        end_term(front, partition_of("short"))
        before = acknowledged(tmp_path)
        members[1] = member(PARTS[1])
        eventually(lambda: acknowledged(tmp_path) > before + 10, within_s=60)
        producer.terminate()
        eventually(lambda: not producer.running)
        written = sum(run.size for line in read_produced(tmp_path) for run in line.runs)
        eventually(lambda: nothing_missing(Records(tmp_path)).figures["given"] == written, within_s=30)
        for one in members:
            one.terminate()
        eventually(lambda: not any(one.running for one in members), within_s=30)
        events.write(Kind.ENDED)
    follower.finish()

    records = Records(tmp_path)
    for ruling in (commits(records), nothing_missing(records), order(records)):
        assert ruling.status is Status.HELD, ruling
