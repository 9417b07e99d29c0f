"""Real servers for the tests, and the check that nothing outlives the test that started it.

The whole session shares :func:`zookeeper` (one standalone server; every test works below its own chroot) and
:func:`kafka_cluster`. A test that kills, pauses or restarts a server makes its own with
:func:`zookeeper_server_factory`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import fcntl
import gc
import itertools
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from kazoo.client import KazooClient
from xdist.scheduler import LoadScopeScheduling

from kafka_coord import renewed
from kafka_coord.dev.cluster import child_reaper
from kafka_coord.dev.cluster.kafka import KafkaCluster, KafkaSettings
from kafka_coord.dev.cluster.server import JvmServer
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.dev.cluster.zookeeper import ZooKeeperEnsemble, ZooKeeperServer, ZooKeeperSettings
from tests import spark_jvm
from tests.migrating import mirrored

# Allows sessions of 400 ms and more, so that tests of expiry are short; clients still choose their own timeout. Several
# tests fill a server with values of 1 MB; with a heap of 64 MB, it would stop answering.
FAST_ZOOKEEPER = ZooKeeperSettings(tick_ms=200, heap_mb=256)

# A busy machine must not fail a property.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

# If a shell starts the tests in the background, they inherit an ignored SIGINT, and so does every program they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The processes of a run inherit these.
if spark_jvm.OPTIONS not in os.environ:
    os.environ[spark_jvm.OPTIONS] = spark_jvm.options()
os.environ.setdefault("WORKER_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_PYTHON", str(Path(__file__).with_name("spark_python")))

_chroot_numbers = itertools.count(1)
_topic_numbers = itertools.count(1)
_shared_servers: list[JvmServer] = []
_kraft = False
_serves_instances = False
"""Whether, with ``--kraft``, the shared brokers have a listener for instances."""


_MARKS = {"kafka_cluster": "kafka", "spark": "spark"}
"""The mark of each test that uses this fixture. Tests that start brokers in another way have it in their file."""
_SPARK = "spark"
"""Tests that start Spark applications. One process runs them, because two applications at once would slow each other
down too much."""
_BROKERS, _CONSUMERS = "brokers", "consumers"
"""Tests that share :func:`three_brokers`, in halves. One process runs each, so that no other starts these brokers."""
_CONTAINERS = "containers"
"""Tests with containers share one ensemble."""
_REAL_CLUSTER = "real cluster"
"""Tests that share the one broker of ``real_cluster``."""
_WHEELS = "wheels"
"""Tests of the wheels, which are built once."""
_FRONT = "tests/frontends/kafka/"
_FRONT_FROM_O = "the Kafka front end, from o"
"""Two processes run the tests of the Kafka front end, which share its servers, half by half."""
_OWN_SERVERS = (f"{_FRONT}test_security.py", f"{_FRONT}test_trouble.py")
"""Tests of the front end that do not."""
_ORDER = (
    *(_FRONT, _FRONT_FROM_O, _BROKERS, _CONSUMERS, _SPARK, _WHEELS, "tests/chaos/test_smoke.py"),
    *("tests/dev/test_cluster.py", "tests/test_on_kraft.py"),
    *("tests/trouble/test_every_znode.py", "tests/demo/test_demo.py", *_OWN_SERVERS),
    *("tests/simulation/test_histories.py", "tests/simulation/groups/test_groups.py", "tests/zk/test_session.py"),
    *("tests/simulation/test_mutations.py", "tests/model/test_hostile_values.py"),
)
"""The groups that take longest begin first; the others run beside them."""
_IN_GROUP = {
    _CONTAINERS: ("tests/containers/",),
    _REAL_CLUSTER: ("tests/testing/",),
    _WHEELS: ("tests/packaging/test_environments.py", "tests/packaging/test_distributions.py"),
    _CONSUMERS: ("tests/consumer/", "tests/spark/test_trouble.py", "tests/dev/test_kafka.py"),  # no Spark starts there
    _BROKERS: (
        *("tests/end_to_end/", "tests/compatibility/", "tests/third_party/"),
        *("tests/cli/test_with_kafka.py", "tests/monitor/test_lag.py"),
        *("tests/monitor/dashboard/test_browser.py", "tests/frontends/kafka/test_rolling.py"),
    ),
    _SPARK: (
        *("tests/spark/", "tests/bench/test_command.py", "tests/chaos/test_lag.py"),
        *("tests/demo/test_demo.py::test_spark", "tests/demo/test_demo.py::test_every_kind"),
    ),
}
"""How the names of a group's tests begin. The first group that fits counts."""


def _group(nodeid: str) -> str:
    """The unit that one process runs as a whole: tests that share servers, at least those of a file."""
    for group, begins in _IN_GROUP.items():
        if nodeid.startswith(begins):
            return group
    file = nodeid.partition("::")[0]
    if not file.startswith(_FRONT) or file in _OWN_SERVERS:
        return file
    return _FRONT if file < f"{_FRONT}test_o" else _FRONT_FROM_O


def _of_front(item: pytest.Item) -> bool:
    return _group(item.nodeid) in {_FRONT, _FRONT_FROM_O}


def _rank(item: pytest.Item) -> tuple[int, bool]:
    """Long tests with Spark come last of their group, so that they do not run beside the first of :data:`_ORDER`."""
    group = _group(item.nodeid)
    late = group == _SPARK and item.get_closest_marker("long") is not None
    return _ORDER.index(group) if group in _ORDER else len(_ORDER), late


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Lets one process collect before the others: it compiles the tests, and the others read its bytecode."""
    with open(__file__, "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)
        gc.disable()
        try:
            return (yield)
        finally:
            gc.freeze()  # what collection made lives to the end, and a garbage collection need not look at it
            gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run also the tests marked long (ADR 37)")
    parser.addoption("--rewrite", action="store_true", help="write what happens into the stories (tests/stories.py)")
    parser.addoption("--kraft", action="store_true", help="the brokers that tests share are Kafka 4.3 in KRaft mode")


def pytest_configure(config: pytest.Config) -> None:
    global _kraft  # noqa: PLW0603 - an option of the run
    _kraft = config.option.kraft


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests, and sorts them into the order in which they begin, without the long ones unless asked for."""
    for item in items:
        for fixture in _MARKS.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(_MARKS[fixture])
    if not config.option.long:
        long = [item for item in items if item.get_closest_marker("long")]
        items[:] = [item for item in items if item not in long]
        config.hook.pytest_deselected(items=long)
    items.sort(key=_rank)
    if _kraft:  # the listener's tests share the brokers of the others, and come last, because they leave a groups log
        global _serves_instances  # noqa: PLW0603 - set once for the run
        _serves_instances = any(_of_front(item) for item in items)
        items.sort(key=_of_front)


class _ByGroup(LoadScopeScheduling):
    """Runs all tests of a group (:func:`_group`) in one process."""

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Divides the tests among the processes of ``scripts/test``."""
    config.option.loadscopereorder = False  # by duration, not by the number of tests
    return _ByGroup(config, log)


@pytest.fixture
def renewed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that have changed are read without waiting until they are still."""
    monkeypatch.setattr(renewed, "STILL_S", 0.0)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """One standalone ZooKeeper shared by all tests. Never kill, pause or fill its root: see ``zk_hosts``."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"), settings=FAST_ZOOKEEPER) as server:
        _shared_servers.append(server)
        yield server


@pytest.fixture
def chroot(zookeeper: ZooKeeperServer) -> str:
    """An empty znode on the shared server for this test only, as a path: ``/test-7``."""
    path = f"/test-{next(_chroot_numbers)}"
    client = KazooClient(zookeeper.connect_string)
    client.start(timeout=30)
    try:
        client.create(path)
    finally:
        client.stop()
        client.close()
    return path


@pytest.fixture
def zk_hosts(zookeeper: ZooKeeperServer, chroot: str) -> str:
    """A connect string for this test only: ``127.0.0.1:20123/test-7``. The chroot node exists and is empty."""
    return f"{zookeeper.connect_string}{chroot}"


@pytest.fixture
def zookeeper_server_factory(tmp_path: Path) -> Iterator[Callable[..., ZooKeeperServer]]:
    """Makes and starts standalone servers that this test may kill and pause.

    ``zookeeper_server_factory(settings=…, port=…)``; all are killed when the test ends.
    """
    servers: list[ZooKeeperServer] = []

    def make(*, settings: ZooKeeperSettings = FAST_ZOOKEEPER, port: int | None = None) -> ZooKeeperServer:
        server = ZooKeeperServer(tmp_path / f"zookeeper-{len(servers)}", port=port, settings=settings)
        servers.append(server)
        server.start()
        return server

    yield make
    for server in servers:
        server.kill()


@pytest.fixture
def zookeeper_ensemble(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    """A running ensemble of three servers for this test only."""
    ensemble = ZooKeeperEnsemble(tmp_path / "ensemble", settings=FAST_ZOOKEEPER)
    try:
        ensemble.start()
        yield ensemble
    finally:
        ensemble.kill()


@contextlib.contextmanager
def shared_brokers(directory: Path, brokers: int) -> Iterator[KafkaCluster]:
    """Brokers for several tests, with a ZooKeeper of their own."""
    settings = KafkaSettings(replication=min(brokers, 3) if _serves_instances else 1, for_instances=_serves_instances)
    with (
        ZooKeeperServer(directory / "zookeeper", settings=FAST_ZOOKEEPER) as server,
        brokers_of_a_run(directory, server.connect_string, brokers, settings) as cluster,
    ):
        _shared_servers.extend(cluster.brokers)
        try:
            yield cluster
        finally:
            _shared_servers[:] = [one for one in _shared_servers if one not in cluster.brokers]


@contextlib.contextmanager
def brokers_of_a_run(directory: Path, zookeeper: str, brokers: int, settings: KafkaSettings) -> Iterator[KafkaCluster]:
    """Brokers of Kafka 3.9 with their metadata in ZooKeeper or, with ``--kraft``, of Kafka 4.3."""
    if _kraft:
        settings = dataclasses.replace(settings, kraft=True, properties=_as_kraft_names_them(settings.properties))
    with (
        KafkaCluster(directory, zookeeper, brokers=brokers, settings=settings) as cluster,
        mirrored(cluster) if _kraft else contextlib.nullcontext(),
    ):
        yield cluster


def _as_kraft_names_them(properties: Mapping[str, str]) -> dict[str, str]:
    found = dict(properties)
    if "authorizer.class.name" in found:
        found["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    if "listener.security.protocol.map" in found:
        found["listener.security.protocol.map"] += ",CONTROLLER:PLAINTEXT"
    return found


@pytest.fixture(scope="session")
def three_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """The :func:`kafka_cluster` of most tests."""
    with shared_brokers(tmp_path_factory.mktemp("kafka"), 3) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka_cluster(three_brokers: KafkaCluster) -> KafkaCluster:
    """Three brokers (ids 1 to 3) with a ZooKeeper of their own, shared by all tests; one for the tests with Spark.

    ``kafka_cluster.zookeeper`` is its connect string (no chroot), ``kafka_cluster.bootstrap_servers`` the brokers. A
    test may kill a broker if it starts it again before it ends. Offsets and transaction topics are not replicated.
    """
    return three_brokers


@pytest.fixture
def topics(kafka_cluster: KafkaCluster) -> TopicAdmin:
    """Creates, grows and deletes topics of the shared cluster."""
    return TopicAdmin(kafka_cluster.bootstrap_servers)


@pytest.fixture
def make_topic(topics: TopicAdmin) -> Iterator[Callable[..., str]]:
    """Makes topics for this test only: ``make_topic(partitions=12, replication=3)`` returns the new topic's name."""
    made: list[str] = []

    def make(partitions: int = 1, *, replication: int = 1, name: str | None = None) -> str:
        topic = name or f"topic-{next(_topic_numbers)}"
        topics.create(topic, partitions, replication=replication)
        made.append(topic)
        return topic

    yield make
    if made:  # no test waits until they are deleted, and a topic that stays does no harm
        concurrent.futures.wait(topics._admin.delete_topics(made).values(), 10)


@pytest.fixture(autouse=True)
def _nothing_outlives_the_test() -> Iterator[None]:
    """Fails a test that leaves a thread or a child process behind. Shared servers do not count, and may replace a
    thread by one of the same name, as an instance does when it is elected."""
    threads = _threads()
    children = _child_pids()
    yield
    for server in _shared_servers:  # a test that failed half-way must not make later ones fail
        if not server.running:
            server.start()
        elif (identity := server.process.identity) is not None and identity.paused():
            server.resume()
    deadline = time.monotonic() + 20
    while True:
        left = [f"thread {name}" for name in _threads() - threads]
        left += [f"process {pid} ({_command_line(pid)})" for pid in _child_pids() - children]
        if not left:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"the test left behind: {', '.join(left)}")
        time.sleep(0.02)


_POOL = "kafka-listener_"
"""The threads in which a listener for Kafka clients waits for ZooKeeper. They begin when they are needed, so a listener
that several tests share has more of them at the end of a test. They end with the listener, whose own thread is seen."""


def _threads() -> Counter[str]:
    """The names of the running threads. librdkafka's show up as dummies when they call back; they end with their
    client."""
    running = (thread for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread))
    mine = (thread.name for thread in running if not _is_sparks(thread))
    return Counter(name for name in mine if not name.startswith(_POOL))


def _is_sparks(thread: threading.Thread) -> bool:
    """The threads through which a Spark session calls functions of this process, as long as it lives."""
    return getattr(getattr(thread, "_target", None), "__module__", "").startswith("py4j.")


def _child_pids() -> set[int]:
    pids: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            pids.update(pid for pid in map(int, (task / "children").read_text().split()) if _runs(pid))
        except OSError:  # the thread has just ended
            continue
    # A test may have restarted a shared broker: the process is new, the server is the same.
    return pids - {child_reaper.reaper_pid()} - {server.pid for server in _shared_servers}


def _runs(pid: int) -> bool:
    """Zombies do not count: if this is the first process of a container, it inherits those of others and reaps none."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _command_line(pid: int) -> str:
    try:
        return os.fsdecode(Path("/proc", str(pid), "cmdline").read_bytes()).replace("\0", " ")[:200]
    except OSError:
        return "ended"
