"""Kafka Connect in distributed mode, and Kafka's console consumer. Their groups differ from those of ``members/``.

Workers are members of a group of the type ``connect``, with their own protocols. A sink also has a consumer group.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import itertools
import json
import logging
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from kafka_coord.dev.cluster.ports import LOOPBACK, free_port
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.errors import BrokerError, RequestRefused
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.kafka.connection import BrokerConnection
from kafka_coord.model import GroupKind
from kafka_coord.spark.session import find_java
from kafka_coord.wire.messages import message
from tests.frontends.kafka.tried.fetching import java_class_path
from tests.frontends.kafka.tried.play import Instances, NotSeen, longest_pause
from tests.waiting import beside

VERSION = "3.9.2"
_KAFKA = "org.apache.kafka"
_GROUP, _TOPIC, _SINK = "connect-workers", "connect-records", "sink"
_TASKS, _RECORDS, _WITHIN_S, _AROUND_S = 4, 200, 90.0, 3.0


def until(condition: Callable[[], bool], what: str, within_s: float = _WITHIN_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise NotSeen(f"not within {within_s:g} s: {what}")
        time.sleep(0.2)


def _java(class_path: str, main: str, *arguments: str) -> list[str]:
    return [str(find_java().executable), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", class_path, main, *arguments]


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


class Worker:
    """One worker, through its REST interface."""

    def __init__(self, bootstrap: str, directory: Path, name: str) -> None:
        self.port = free_port()
        self._settings = directory / f"{name}.properties"
        lines = {
            "bootstrap.servers": bootstrap,
            "group.id": _GROUP,
            "client.id": name,
            "listeners": f"http://{LOOPBACK}:{self.port}",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1500",
            "scheduled.rebalance.max.delay.ms": "3000",
            "offset.flush.interval.ms": "1000",
            "plugin.discovery": "service_load",
        }
        for kind in ("config", "offset", "status"):
            lines |= {f"{kind}.storage.topic": f"connect-{kind}", f"{kind}.storage.replication.factor": "1"}
        for kind in ("key", "value"):
            lines[f"{kind}.converter"] = "org.apache.kafka.connect.storage.StringConverter"
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    def command(self) -> list[str]:
        jars = java_class_path(f"{_KAFKA}:connect-runtime:{VERSION}", f"{_KAFKA}:connect-file:{VERSION}")
        return _java(jars, "org.apache.kafka.connect.cli.ConnectDistributed", str(self._settings))

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Sends a request to the worker, and returns the answer, or ``None`` if the worker does not answer (yet)."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=10)
        data = None if body is None else json.dumps(body).encode()
        try:
            connection.request("GET" if body is None else "POST", path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said = answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return json.loads(said or b"null") if answer.status < 300 else None

    def runs_all(self, workers: int) -> bool:
        """Whether the connector and all its tasks run on ``workers`` workers."""
        status = self.ask(f"/connectors/{_SINK}/status")
        if not status:
            return False
        parts = [status["connector"], *status["tasks"]]
        running = all(one["state"] == "RUNNING" for one in parts)
        return running and len(status["tasks"]) == _TASKS and len({one["worker_id"] for one in parts}) == workers


@dataclass(frozen=True)
class Sinking:
    """Two workers that share the tasks of a sink, which writes to ``output``."""

    instances: Instances
    workers: tuple[Worker, Worker]
    second: subprocess.Popen[bytes]
    output: Path

    def runs_all(self, workers: int, what: str) -> None:
        until(lambda: self.workers[0].runs_all(workers), what)

    def sinks(self, batches: int, what: str) -> None:
        """Writes the last of so many batches of records. The sink then has all of them."""
        producer = Producer({"bootstrap.servers": self.instances.bootstrap, "log_level": 0})
        for number in range((batches - 1) * _RECORDS, batches * _RECORDS):
            producer.produce(_TOPIC, str(number), partition=number % _TASKS)
        if producer.flush(60):
            raise NotSeen("the records could not be written")
        until(
            lambda: self.output.exists() and len(set(self.output.read_text().split())) == batches * _RECORDS,
            f"the sink has all records {what}",
        )

    @contextmanager
    def flowing(self) -> Iterator[Mapping[int, list[float]]]:
        """Writes a record to each partition again and again. Yields when the sink wrote one of each partition."""
        times: dict[int, list[float]] = {partition: [] for partition in range(_TASKS)}

        def flow(ends: threading.Event) -> None:
            producer = Producer({"bootstrap.servers": self.instances.bootstrap, "log_level": 0})
            with self.output.open() as sunk:
                sunk.seek(0, io.SEEK_END)
                while not ends.wait(0.02):
                    for partition in range(_TASKS):
                        producer.produce(_TOPIC, str(partition), partition=partition)
                    producer.poll(0)
                    now = time.monotonic()
                    for word in sunk.read().split():
                        times[int(word)].append(now)
            producer.flush(60)

        with beside(flow):
            yield times


@contextmanager
def sinking(instances: Instances, directory: Path) -> Iterator[Sinking]:
    output = directory / "sunk"
    TopicAdmin(instances.brokers).create(_TOPIC, _TASKS, replication=1)
    first, second = (
        Worker(instances.bootstrap, directory, "worker-1"),
        Worker(instances.bootstrap, directory, "worker-2"),
    )
    with (
        _running(first.command(), directory / "worker-1.log"),
        _running(second.command(), directory / "worker-2.log") as process,
    ):
        settings = {"connector.class": "FileStreamSink", "tasks.max": _TASKS, "topics": _TOPIC, "file": str(output)}
        until(lambda: first.ask("/connectors", {"name": _SINK, "config": settings}) is not None, "a worker answers")
        found = Sinking(instances, (first, second), process, output)
        found.runs_all(2, "two workers share the tasks")
        found.sinks(1, "of two workers")
        yield found


def try_connect(instances: Instances, directory: Path) -> str:
    """Two workers share a sink's tasks. One is killed. Then the coordinator stops and returns. Returns the results.
    Raises :class:`NotSeen`."""
    with sinking(instances, directory) as sink:
        kind = _members_of(instances.bootstrap, _GROUP)
        sink.second.kill()
        sink.second.wait()
        sink.runs_all(1, "the worker that is left has all tasks")
        coordinator = instances.coordinator(partition_of(_GROUP))
        instances.stop(coordinator)
        time.sleep(3.0)
        instances.start(coordinator)
        sink.sinks(2, "after the coordinator was away")
        sink.runs_all(1, "the worker runs all tasks after the coordinator was away")
    return kind


def move_connect(instances: Instances, directory: Path) -> None:
    """The group of two workers and that of their sink are given back and taken over while they run. The sink's becomes
    managed, and client-assigned again; that of the workers cannot. Raises :class:`NotSeen`."""
    kinds = [GroupKind.NATIVE, GroupKind.CLIENT_ASSIGNED]
    moves = [*itertools.product((_GROUP, f"connect-{_SINK}"), kinds)]
    moves += [(f"connect-{_SINK}", to) for to in (GroupKind.MANAGED, GroupKind.CLIENT_ASSIGNED)]
    with sinking(instances, directory) as sink:
        for number, (group, to) in enumerate(moves, 2):
            refused: list[str] = []
            with sink.flowing() as times:
                time.sleep(_AROUND_S)
                began = time.monotonic()
                until(partial(_converts, instances, group, to, refused), f"{group} is {to}")
                time.sleep(_AROUND_S)
                ended = time.monotonic()
            logging.warning("%s is %s: pause %.1f s", group, to, longest_pause(times, began, ended))
            sink.sinks(number, f"once {group} is {to}")
            sink.runs_all(2, f"two workers share the tasks once {group} is {to}")
        refused = []
        if _converts(instances, _GROUP, GroupKind.MANAGED, refused) or "of type 'connect'" not in refused[0]:
            raise NotSeen(f"the group of the workers must not become managed: {refused}")
        sink.sinks(len(moves) + 2, "at the end")
        sink.runs_all(2, "two workers share the tasks at the end")


def _converts(instances: Instances, group: str, to: GroupKind, refused: list[str]) -> bool:
    try:
        instances.convert(group, to)
    except RequestRefused as error:
        refused.append(str(error))
        return False
    return True


def _members_of(bootstrap: str, group: str) -> str:
    """A group's state, type and members, as its coordinator describes it. librdkafka describes only consumer groups."""

    async def ask() -> Any:
        for address in bootstrap.split(","):
            host, _, port = address.rpartition(":")
            connection = BrokerConnection(host, int(port))
            try:
                answer = await connection.ask("DescribeGroups", 5, message("DescribeGroupsRequest")(groups=(group,)))
            except BrokerError:
                continue
            finally:
                connection.close()
            if not answer.groups[0].error_code:
                return answer.groups[0]
        raise NotSeen(f"no instance describes group {group}")

    found = asyncio.run(ask())
    return f"{found.group_state}, type {found.protocol_type}, {len(found.members)} members"


def try_console(instances: Instances, directory: Path) -> str:
    """Two console consumers share a topic. One is stopped, and the next continues at the group's offsets."""
    topic = "console-records"
    TopicAdmin(instances.brokers).create(topic, _TASKS, replication=1)
    producer = Producer({"bootstrap.servers": instances.bootstrap, "log_level": 0})

    def produce(first: int) -> None:
        for number in range(first, first + _RECORDS):
            producer.produce(topic, str(number), partition=number % _TASKS)
        producer.flush(60)

    settings = ["--consumer-property", "session.timeout.ms=6000", "--consumer-property", "auto.commit.interval.ms=500"]
    command = _java(
        java_class_path(f"{_KAFKA}:kafka-tools:{VERSION}"),
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", instances.bootstrap, "--topic", topic, "--group", "console", "--from-beginning"),
        *settings,
    )
    logs = [directory / f"console-{n}.log" for n in (1, 2, 3)]

    def said(*of: Path) -> list[int]:
        return [int(word) for log in of if log.exists() for word in log.read_text().split() if word.isdigit()]

    produce(0)
    with _running(command, logs[0]) as first, _running(command, logs[1]) as second:
        until(lambda: sorted(said(*logs)) == list(range(_RECORDS)), "two console consumers print all records once")
        until(lambda: "2 members" in _members_of(instances.bootstrap, "console"), "both are members")
        for process in (first, second):
            process.send_signal(signal.SIGTERM)
        for process in (first, second):
            process.wait(30)
    produce(_RECORDS)
    with _running(command, logs[2]):
        until(lambda: sorted(said(logs[2])) == list(range(_RECORDS, 2 * _RECORDS)), "the next prints the new ones only")
    return "two share, one begins where they left off"
