"""Short runs on this folder's cluster with the members, journals and judge of ``scripts/chaos --clients kafka`` and
``--clients mixed``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.grouplog.manager import partition_of
from tests.chaos.clients.following import LogFollower
from tests.chaos.journal import (
    Committed,
    EventWriter,
    Kind,
    Phase,
    Run,
    Setup,
    Started,
    read_consumers,
    write_run,
)
from tests.chaos.judge.commits import commits, commits_of_owners
from tests.chaos.judge.evidence import Records
from tests.chaos.judge.findings import Status
from tests.chaos.judge.groups import explained, unmoved
from tests.chaos.judge.ownership import Ending
from tests.chaos.judge.reading import nothing_missing, one_owner, order, repeats
from tests.chaos.parts import CONFLUENT, MODULES, PREFIX, Part, groups_of, mixed_cast
from tests.frontends.kafka.conftest import Front, end_term
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
TOPIC, PARTITIONS = f"{PREFIX}short", 4
PARTS = tuple(
    Part(f"short-{n}", "short", (TOPIC,), kind=CONFLUENT, commit_every=20, strategy=strategy, static=n == 2, user="")
    for n, strategy in ((1, "cooperative-sticky"), (2, "cooperative-sticky"))
)
MIXED_TOPIC = f"{PREFIX}every"
MIXED = tuple(
    replace(part, topics=(MIXED_TOPIC,), user="") for part in mixed_cast() if part.group == "every" and not part.socket
)
Start = Callable[..., ChildProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts modules of the chaos runs as processes, and ends them afterwards."""
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
    """How many partitions the members have started, in all."""
    return sum(
        len(line.offsets) for one in read_consumers(directory) for line in one.lines if isinstance(line, Started)
    )


def acknowledged(directory: Path) -> int:
    return sum(isinstance(line, Committed) for one in read_consumers(directory) for line in one.lines)


def read_all(directory: Path, producer: ChildProcess) -> None:
    """Ends the producer, and waits until its records have been read."""
    producer.terminate()
    eventually(lambda: not producer.running)
    eventually(lambda: nothing_missing(Records(directory)).status is Status.HELD, within_s=30)


def end(members: Iterable[ChildProcess]) -> None:
    """Terminates the members, so that each leaves cleanly."""
    for one in members:
        one.terminate()
    eventually(lambda: not any(one.running for one in members), within_s=30)


def owners(directory: Path) -> set[str]:
    """The processes that own a partition, according to their journals."""
    return {
        owner.process for book in Records(directory).books for owner in book.ownerships if owner.ending is Ending.OPEN
    }


def test_no_acknowledged_commit_is_lost_when_a_member_is_killed_and_the_group_is_loaded_again(
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
        read_all(tmp_path, producer)
        end(members)
        events.write(Kind.ENDED)
    follower.finish()

    records = Records(tmp_path)
    for ruling in (commits(records), nothing_missing(records), order(records)):
        assert ruling.status is Status.HELD, str(ruling)


def test_consumers_of_every_kind_share_a_managed_group_while_one_is_killed_and_others_leave(
    front: Front, service: CoordinatorService, tmp_path: Path, start: Start
) -> None:
    TopicAdmin(front.cluster.bootstrap_servers).create(MIXED_TOPIC, 2 * len(MIXED), replication=3)
    setup = Setup(2, 0, {}, {"consumer": 14_000}, 60_000)
    participants = tuple(part.participant() for part in MIXED)
    write_run(tmp_path, Run(1, 0.2, "", time.monotonic(), 0.0, setup, groups_of(MIXED), participants, clients="mixed"))
    producer = start("producer", "producing", "--bootstrap", front.bootstrap, "--per-s", "200")

    def member(part: Part) -> ChildProcess:
        where = ("--zookeeper", front.cluster.zookeeper, "--bootstrap", front.bootstrap)
        return start(part.name, MODULES[part.kind], *where, "--part", part.to_argument())

    def all_own_something() -> bool:
        return len(owners(tmp_path)) == len(members)

    members = {MIXED[0].name: member(MIXED[0])}  # the library's consumer creates the group, so the group is managed
    with EventWriter(tmp_path) as events:
        eventually(all_own_something, within_s=60)
        members |= {part.name: member(part) for part in MIXED[1:]}
        eventually(all_own_something, within_s=60)
        for part in MIXED:
            one = members.pop(part.name)
            if part.protocol == "classic" and part.kind == CONFLUENT:
                events.write(Kind.KILL, f"consumer:{part.name}", pid=one.pid)
                one.kill()
            else:
                events.write(Kind.STOP, f"consumer:{part.name}", Phase.BEGIN, pid=one.pid)
                end([one])
                events.write(Kind.STOP, f"consumer:{part.name}", Phase.END, pid=one.pid)
            events.write(Kind.LEADERS_MOVED, "log")
            end_term(front, partition_of("every"))
            members[part.name] = member(part)
            eventually(all_own_something, within_s=90)
        read_all(tmp_path, producer)
        events.write(Kind.ENDED)
    end(members.values())

    records = Records(tmp_path)
    for rule in (nothing_missing, one_owner, repeats, order, commits_of_owners, unmoved, explained):
        ruling = rule(records)
        # on a busy machine, five moves in a row may take longer than a session, which explains a lost membership
        allowed = {Status.NOT_EXERCISED, Status.HELD} if rule is explained else {Status.HELD}
        assert ruling.status in allowed, str(ruling)
