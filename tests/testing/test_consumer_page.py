"""docs/consumer.md: every example does what the page says. Those with signals run as programs, on a real cluster."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

import kafka_coord
from kafka_coord.errors import NoNode
from kafka_coord.testing import FakeCluster
from kafka_coord.zk import connect, layout
from tests.waiting import eventually

if TYPE_CHECKING:  # pytest must be the first to import a plugin
    from kafka_coord.testing.fixtures import RealCluster

pytest_plugins = ["kafka_coord.testing.fixtures"]

PAGE = (Path(__file__).parents[2] / "docs" / "consumer.md").read_text()
EXAMPLES = dict(re.findall(r"^```python (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
PROGRAMS = {"loop", "asyncio", "exactly-once"}
ZOOKEEPER = "zk1:2181,zk2:2181/kafka"


def test_every_example_is_known() -> None:
    assert len(re.findall(r"^```python", PAGE, re.MULTILINE)) == len(EXAMPLES)
    assert set(EXAMPLES) == PROGRAMS | set(LOOPS) | {"registry", "unit-test"}


# --- as programs -----------------------------------------------------------------------------------------------------


@contextmanager
def running(name: str, cluster: RealCluster, directory: Path) -> Iterator[subprocess.Popen[str]]:
    source = EXAMPLES[name].replace(ZOOKEEPER, cluster.zookeeper)
    program = re.sub(r'"(flights|delays)"', rf'"{name}"', source.replace("group=", "session_timeout_ms=4_000, group="))
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def has_no_member(cluster: RealCluster, group: str) -> bool:
    store = connect(cluster.zookeeper)
    try:
        return not store.children(layout.ids(group))
    except NoNode:
        return False
    finally:
        store.close()


@pytest.mark.kafka
@pytest.mark.parametrize("name", ["loop", "asyncio"])
def test_the_loop_ends_at_sigterm_with_everything_committed(
    name: str, real_cluster: RealCluster, tmp_path: Path
) -> None:
    real_cluster.create_topic(name, 2)
    for number in range(20):
        real_cluster.produce(name, b"%d" % number, partition=number % 2)
    with running(name, real_cluster, tmp_path) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(20)]
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest, errors) == (0, "", "")
    assert {line.split(" ", 1)[0] for line in lines} == {"0", "1"}
    assert real_cluster.committed(name, name) == {0: 10, 1: 10}
    assert has_no_member(real_cluster, name), "it left, rather than wait for the session timeout"


@pytest.mark.kafka
def test_the_table_has_every_record_once_although_the_program_is_killed(
    real_cluster: RealCluster, tmp_path: Path
) -> None:
    name = "exactly-once"
    real_cluster.create_topic(name, 2)
    values = [b"%d" % number for number in range(40)]

    def rows() -> list[bytes]:
        with sqlite3.connect(tmp_path / "delays.db", timeout=30) as database:
            known = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'flight'").fetchone()
            found = database.execute("SELECT value FROM flight").fetchall() if known else []
        return sorted((value for (value,) in found), key=int)

    for value in values[:20]:
        real_cluster.produce(name, value, partition=int(value) % 2)
    with running(name, real_cluster, tmp_path) as process:
        eventually(lambda: rows() == values[:20], within_s=60)
        process.kill()
    store = connect(real_cluster.zookeeper)  # an earlier commit than the table's, as after a crash
    for partition in range(2):
        store.ensure_path(layout.offset(name, name, partition))
        store.set(layout.offset(name, name, partition), b"3")
    store.close()
    for value in values[20:]:
        real_cluster.produce(name, value, partition=int(value) % 2)
    with running(name, real_cluster, tmp_path) as process:
        eventually(lambda: rows() == values, within_s=60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


# --- in this process, on the fake ------------------------------------------------------------------------------------

LOOPS = {
    "commit": b"v",
    "threads": b"v",
    "deserializer": b'{"n": 1}',
    "from-confluent": b"v",
    "from-kafka-python": b'{"n": 1}',
}
"""What the records hold that each example processes."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    with FakeCluster() as cluster:
        cluster.create_topic("flights", 2)
        made: list[Any] = []

        class Consumer(cluster.Consumer):  # type: ignore[name-defined,misc]
            def __init__(self, *args: Any, **arguments: Any) -> None:
                super().__init__(*args, **arguments)
                made.append(self)

        monkeypatch.setattr(kafka_coord, "Consumer", Consumer, raising=False)
        monkeypatch.setattr(cluster, "_consumers", made)
        yield cluster


def run(cluster: FakeCluster, name: str, until: Callable[[], bool], **given: Any) -> None:
    """Runs the example, and stops its consumer when ``until`` says so."""

    def stop() -> None:
        try:
            eventually(until)
        finally:  # or the example would never end
            eventually(lambda: cluster._consumers)
            for consumer in cluster._consumers:
                consumer.stop()

    stopping = threading.Thread(target=stop)
    stopping.start()
    exec(compile(EXAMPLES[name], f"docs/consumer.md: {name}", "exec"), given)  # noqa: S102
    stopping.join()
    for consumer in cluster._consumers:
        consumer.close()


@pytest.mark.parametrize("name", LOOPS)
def test_the_example_processes_and_commits_every_record(name: str, cluster: FakeCluster) -> None:
    for number in range(10):
        cluster.produce("flights", LOOPS[name], partition=number % 2)
    done: list[Any] = []
    set_aside: list[Any] = []
    if name == "deserializer":
        cluster.produce("flights", b"{", partition=1)
    # Each runs until it has come back for another record, so that all are consumed.
    run(
        cluster,
        name,
        lambda: len(done) == 10 and len(set_aside) == (name == "deserializer"),
        process=done.extend,
        set_aside=lambda *what: set_aside.append(what),
    )
    assert name not in {"deserializer", "from-kafka-python"} or done == [json.loads(LOOPS[name])] * 10
    assert cluster.committed("delays", "flights") == {0: 5, 1: 6 if name == "deserializer" else 5}


ON_A_FAKE = """
import kafka_coord
from kafka_coord.testing import FakeCluster

cluster = FakeCluster()
cluster.create_topic("flights", 2)
for number in range(4):
    cluster.produce("flights", b'{"n": 1}', partition=number % 2)
kafka_coord.Consumer, kafka_coord.AsyncConsumer = cluster.Consumer, cluster.AsyncConsumer


def process(records):
    for record in records:
        print(record, flush=True)


def set_aside(*_):
    pass

"""


@pytest.mark.parametrize(
    ("name", "number"),
    [(name, (signal.SIGINT, signal.SIGTERM)[turn % 2]) for turn, name in enumerate([*sorted(PROGRAMS), *LOOPS])],
)
def test_a_signal_ends_each_example_cleanly(name: str, number: signal.Signals, tmp_path: Path) -> None:
    source = ON_A_FAKE + EXAMPLES[name] + "\nprint('ended', cluster.committed('delays', 'flights'))"
    source = source.replace('"UPDATE progress', 'print("row", flush=True) or "UPDATE progress')  # prints nothing itself
    with subprocess.Popen(
        [sys.executable, "-c", source], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(number)
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert "ended {" in rest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(("where", "said"), [("zookeeper", ""), ("bootstrap", "ended True\n")])
def test_a_signal_ends_a_program_that_has_not_joined_yet(where: str, said: str, number: signal.Signals) -> None:
    source = f"""
import socket, threading
from kafka_coord import Consumer

with socket.create_server(("127.0.0.1", 0)) as silent:
    address = "127.0.0.1:%d" % silent.getsockname()[1]
    accepted = []
    ask = lambda: (accepted.append(silent.accept()), print("asked", flush=True))
    threading.Thread(target=ask, daemon=True).start()
    with Consumer({where}=address, group="delays", topics=["flights"], stop_on_signals=True) as consumer:
        for record in consumer:
            pass
    print("ended", consumer.stopped)
"""
    with subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert rest == said


def test_the_unit_test_passes() -> None:
    given: dict[str, Any] = {}
    exec(EXAMPLES["unit-test"], given)  # noqa: S102
    given["test_the_loop_counts_each_flight_once"]()


def test_a_schema_registry_reads_the_values(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry's client needs packages that this project does not, so its classes are stand-ins here."""
    registry, avro = ModuleType("registry"), ModuleType("avro")
    registry.SchemaRegistryClient = dict  # type: ignore[attr-defined]
    avro.AvroDeserializer = lambda _client: lambda data, context: (data.decode(), context.topic)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry", registry)
    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry.avro", avro)
    given: dict[str, Any] = {}
    exec(EXAMPLES["registry"], given)  # noqa: S102
    consumer = given["consumer"]
    eventually(lambda: len(consumer.assignment()) == 2)
    cluster.produce("flights", b"7")
    assert consumer.poll(30.0).value == ("7", "flights")
