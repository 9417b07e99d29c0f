"""A cluster of many groups is rolled out and left again by the steps of docs/operations.md, while all its members run,
the operator stops in the middle, and instances are killed."""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from kafka_coord.dev.bench.kafka_groups.servers import Servers
from kafka_coord.dev.bench.kafka_groups.servers import started as servers_started
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.groups.instances import AskedInstances
from kafka_coord.groups.requests import read_requests
from kafka_coord.model import GroupKind
from kafka_coord.zk import connect
from kafka_coord.zk.kinds import AT_REST, read_kinds
from kafka_coord.zk.store import Store
from tests.cli.running import Ran, Started, run, started
from tests.frontends.kafka.feeding import Feed
from tests.frontends.kafka.tried.contenders import CONTENDERS
from tests.frontends.kafka.tried.play import Play
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper, pytest.mark.long]
TOPIC = "rolled-out"
LIBRARIES = (
    "kafka-python 3.0.12",
    "aiokafka 0.14.0",
    "kafka-clients 3.9.2",
    "kafka-streams 3.9.2",
    "franz-go 1.22.3",
    "Sarama 1.61.1",
)
_AT_ONCE = 16


@dataclass(frozen=True)
class Place:
    """Where clients find their coordinators."""

    bootstrap: str
    brokers: str

    def coordinator(self, partition: int) -> int:
        raise NotImplementedError

    def stop(self, broker_id: int) -> None:
        raise NotImplementedError

    def start(self, broker_id: int) -> None:
        raise NotImplementedError

    def convert(self, group: str, to: GroupKind) -> None:
        raise NotImplementedError


class Crowd:
    """One stock consumer for each of many groups, which one thread polls. ``found`` are the numbers that each group has
    read, and ``assigned`` how often it was assigned its partition since it was pointed at its servers."""

    def __init__(self, names: list[str]) -> None:
        self.found: dict[str, list[int]] = {name: [] for name in names}
        self.assigned: dict[str, int] = {}
        self._ends, self._consumers = threading.Event(), dict[str, Consumer]()
        self._thread = threading.Thread(target=self._poll)

    def point_at(self, servers: str, names: list[str] | None = None) -> None:
        self.stop()
        names = names or list(self.found)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(
                pool.map(
                    lambda name: self._consumers.pop(name).close(), [one for one in names if one in self._consumers]
                )
            )
        for name in names:
            self.assigned[name] = 0
            settings = {"bootstrap.servers": servers, "group.id": name, "auto.offset.reset": "earliest"}
            self._consumers[name] = Consumer(settings | {"auto.commit.interval.ms": 1_000, "fetch.wait.max.ms": 1_000})

            def count(_consumer: Consumer, _partitions: object, of: str = name) -> None:
                self.assigned[of] += 1

            self._consumers[name].subscribe([TOPIC], on_assign=count)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()
        self.go_on()

    def _poll(self) -> None:
        while not self._ends.wait(0.1):
            for name, one in self._consumers.items():
                self.found[name] += [int(m.value()) for m in one.consume(100, 0) if m.error() is None]

    def go_on(self) -> None:
        """Waits until each group has read records that were written after this call."""
        newest = max(max(found, default=0) for found in self.found.values())
        eventually(lambda: all(max(found, default=0) > newest for found in self.found.values()), within_s=300)

    def stop(self) -> None:
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join()

    def close(self) -> None:
        self.stop()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda one: one.close(), self._consumers.values()))


@contextmanager
def timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    logging.warning("%s: %.1f s", what, time.monotonic() - began)


class Operator:
    """Moves groups as the page says, by commands of their own."""

    def __init__(self, servers: Servers, store: Store) -> None:
        self._servers, self._store = servers, store
        self.refused: set[str] = set()
        """The groups of which any move was refused: it may have been undone, after which the members join again."""

    def moves(self, *command: str, after: int = 0, then: Callable[[Started], None] = lambda _run: None) -> Ran:
        """Runs a command, and does something once it has moved some groups."""
        with (
            timed(" ".join(command)),
            started("groups", *command, "--execute", KAFKA_COORD_ZOOKEEPER=self._servers.zookeeper) as running,
        ):
            lines = [running.line() for _ in range(after)]
            assert all(": done: " in line for line in lines), lines
            then(running)
            ran = running.ended(within_s=1_200)
        logging.warning("exit code %d: %s", ran.code, ran.err[-1_000:])
        self.refused |= set(re.findall(r"refused: group (\S+) was not moved", ran.err))
        return Ran(ran.code, "".join(lines) + ran.out, ran.err)

    def kills_who_moves(self, group: str) -> Callable[[Started], None]:
        def kill(_running: Started) -> None:
            mover, _ = AskedInstances(self._store, {}).directory().coordinator_of(group)
            process = self._servers.instances[mover].process
            process.kill()
            process.start()

        return kill

    def kinds(self, names: list[str]) -> set[GroupKind]:
        records = read_kinds(self._store, names)
        return {records.get(name, AT_REST).kind for name in names}


def interrupt(running: Started) -> None:
    running.process.send_signal(signal.SIGINT)


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("count", [20, 200])
def test_a_cluster_is_rolled_out_and_left_again_as_the_page_says(
    tmp_path: Path, count: int, request: pytest.FixtureRequest
) -> None:
    options = {"brokers": 3, "as_in_production": False, "kraft": request.config.option.kraft}
    light, first = [f"light-{number:03}" for number in range(count - len(LIBRARIES))], count // 8
    with ExitStack() as ends:
        servers = ends.enter_context(servers_started(tmp_path / "servers", **options))
        store = connect(servers.zookeeper)
        ends.callback(store.close)
        at_brokers = Place(servers.cluster.bootstrap_servers, servers.cluster.bootstrap_servers)
        at_instances = Place(servers.cluster.instance_servers, at_brokers.brokers)
        TopicAdmin(at_brokers.brokers).create(TOPIC, 1, replication=3)
        ends.enter_context(Feed(at_brokers.brokers, TOPIC, 1, every_s=0.2).running())
        operator, crowd = Operator(servers, store), Crowd(light)
        ends.callback(crowd.close)
        plays = [Play(one, one.strategies[-1], at_brokers) for one in CONTENDERS if one.name in LIBRARIES]
        for play in plays:
            ends.callback(play.end)
        names = sorted([*light, *(one.group for one in plays)])

        def read_on() -> None:
            crowd.go_on()
            for play in plays:
                play.go_on()

        with timed("everybody reads at the brokers"):
            crowd.point_at(at_brokers.bootstrap)
            for play in plays:
                play.begin()
        with timed("everybody but one is pointed at the instances"):
            crowd.point_at(at_instances.bootstrap, light[1:])
            for play in plays:
                play.point_at(at_instances)
        eventually(lambda: "NOT SHOWN" not in run("groups", "list", zookeeper=servers.zookeeper).err, within_s=60)
        assert operator.kinds(names[1:]) == {GroupKind.NATIVE}

        with timed("dry run"):
            ran = run("groups", "take-over", "--all", zookeeper=servers.zookeeper)
        assert ran.code == 0, ran.err
        assert len(ran.out.splitlines()) == len(names)
        assert f"nothing was changed; --execute makes {len(names)} groups client-assigned" in ran.err
        assert operator.kinds(names[1:]) == {GroupKind.NATIVE}

        ran = operator.moves("take-over", "--matching", "light-.*", after=first, then=interrupt)
        assert ran.code == 130
        moved = ran.out.count(": done: ")
        assert f"of {len(light)} groups; run the command again for the rest" in ran.err
        assert first <= moved < len(light)
        assert "convert-group" not in {one.type for one in read_requests(store)[0]}, "nothing is left to be done later"
        left = [name for name in names if operator.kinds([name]) == {GroupKind.NATIVE}]
        ran = operator.moves("take-over", "--all", after=first, then=operator.kills_who_moves(left[first + 1]))
        assert ran.code == 6
        assert f"refused: {light[0]}" in ran.err
        crowd.point_at(at_instances.bootstrap, light[:1])
        eventually(lambda: operator.moves("take-over", "--all").code == 0, within_s=300)
        assert operator.kinds(names) == {GroupKind.CLIENT_ASSIGNED}
        with timed("everybody reads on"):
            read_on()
        rejoined = {name for name, times in crowd.assigned.items() if times > 1}
        assert len(rejoined - operator.refused) <= 1, "of the rest, only that whose mover was killed"

        ran = operator.moves("give-back", "--all", after=first, then=operator.kills_who_moves(names[first + 1]))
        if ran.code:
            eventually(lambda: operator.moves("give-back", "--all").code == 0, within_s=300)
        assert operator.kinds(names) == {GroupKind.NATIVE}
        assert not any(one.fenced for one in read_kinds(store, names).values())
        with timed("everybody reads on"):
            read_on()
        with timed("everybody is pointed at the brokers"):
            crowd.point_at(at_brokers.bootstrap)
            for play in plays:
                play.point_at(at_brokers)
        for instance in servers.instances.values():
            instance.process.stop()
        read_on()
    for name, numbers in crowd.found.items():
        assert set(numbers) == set(range(max(numbers) + 1)), f"{name} has skipped records"
