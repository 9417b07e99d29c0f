"""A local cluster in a directory: up, down, left running, half dead, and in unusable directories."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from kafka_coord.dev.cluster.cluster import DevCluster
from kafka_coord.dev.cluster.identity import ProcessIdentity, boot_id
from kafka_coord.dev.cluster.kafka import KafkaBroker, KafkaSettings
from kafka_coord.dev.cluster.ports import free_port
from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.dev.cluster.record import ClusterRecord, ServerRecord, load, processes_mentioning, save
from kafka_coord.dev.cluster.status import ClusterStatus
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from kafka_coord.errors import DevClusterError
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

FAST = ZooKeeperSettings(tick_ms=200)

# Registers as a coordinator does, and does nothing else: the test is about the process that runs it.
REGISTERS = """
import sys, threading
from kazoo.client import KazooClient
client = KazooClient(sys.argv[2], timeout=6)
client.start()
client.create("/consumers/coordinators/" + sys.argv[1], ephemeral=True, makepath=True)
threading.Event().wait()
"""

# Brings a cluster of one broker up, or of several in KRaft mode, reports it, and waits to be killed; with "detach",
# leaves it running.
OWNER = """
import sys
from pathlib import Path
from kafka_coord.dev.cluster.cluster import DevCluster
from kafka_coord.dev.cluster.kafka import KafkaSettings
from kafka_coord.dev.cluster.zookeeper import ZooKeeperSettings
kraft = [int(brokers) for brokers in sys.argv[3:]]
cluster = DevCluster(
    Path(sys.argv[1]),
    brokers=kraft[0] if kraft else 1,
    kafka_settings=KafkaSettings(kraft=bool(kraft), replication=3 if kraft else 1),
    zookeeper_settings=ZooKeeperSettings(tick_ms=200),
)
cluster.up()
if sys.argv[2] == "detach":
    cluster.detach()
else:
    print("up", flush=True)
    sys.stdin.read()
"""


def registering(broker: KafkaBroker) -> Sequence[str]:
    return [sys.executable, "-c", REGISTERS, str(broker.broker_id), broker.zookeeper]


@pytest.fixture
def dev_cluster(tmp_path: Path) -> Iterator[Callable[..., DevCluster]]:
    """Makes clusters of one broker in this test's directory, and ends whatever runs there when the test ends."""
    directory = tmp_path / "cluster"

    def make(**options: object) -> DevCluster:
        defaults: dict[str, object] = {"brokers": 1, "zookeeper_settings": FAST}
        return DevCluster(directory, **(defaults | options))  # type: ignore[arg-type]

    yield make
    with contextlib.suppress(DevClusterError):
        if (found := load(directory)) is not None:
            for server in found.running():
                assert server.process is not None
                server.process.signal(signal.SIGKILL)


def test_a_cluster_comes_up_again_on_its_data_and_ports(dev_cluster: Callable[..., DevCluster]) -> None:
    said: list[str] = []
    shape = {
        "coordinators": True,
        "coordinator_command": registering,
        "kafka_settings": KafkaSettings(for_instances=True),
    }
    with dev_cluster(on_progress=said.append, **shape) as cluster:
        first = cluster.status()
        TopicAdmin(cluster.bootstrap_servers).create("kept", partitions=3)
    assert first.up
    assert {(server.name, server.state) for server in first.servers} == {
        ("zookeeper-1", "standalone"),
        ("kafka-1", "controller"),
        ("coordinator-1", "registered"),
    }
    assert [line.split()[0] for line in said] == ["starting", "starting", "writing", "starting"]
    stopped = dev_cluster().status()
    assert stopped.down
    assert {server.state for server in stopped.servers} == {"stopped"}

    with dev_cluster(**shape) as cluster:
        again = cluster.status()
        assert (again.zookeeper, again.bootstrap_servers, again.instance_servers) == (
            *(first.zookeeper, first.bootstrap_servers, first.instance_servers),
        )
        assert TopicAdmin(cluster.bootstrap_servers).partition_count("kept") == 3
        view = cluster.kafka.broker(1).view()
        assert view is not None
        assert set(view.topics) - {"__consumer_offsets"} == {"kept"}, "the probe left its topic behind"


@pytest.mark.long
def test_a_port_that_was_taken_meanwhile_is_replaced(dev_cluster: Callable[..., DevCluster], tmp_path: Path) -> None:
    with dev_cluster() as cluster:
        before = cluster.status()
    taken = int(before.zookeeper.rpartition(":")[2])

    with ZooKeeperServer(tmp_path / "another", port=taken, settings=FAST), dev_cluster() as cluster:
        after = cluster.status()

    assert after.zookeeper != before.zookeeper
    assert after.bootstrap_servers == before.bootstrap_servers


def test_a_coordinator_runs_beside_each_broker_and_can_be_killed_and_brought_back(
    dev_cluster: Callable[..., DevCluster],
) -> None:
    with dev_cluster(brokers=2, coordinators=True, coordinator_command=registering) as cluster:
        assert {server.name: server.state for server in cluster.status().servers if server.kind == "coordinator"} == {
            "coordinator-1": "registered",
            "coordinator-2": "registered",
        }

        cluster.coordinator(2).kill()
        eventually(lambda: not cluster.coordinator(2).registered())
        assert not cluster.status().up

        cluster.coordinator(2).start()
        assert cluster.status().up
        pids = [server.pid for server in cluster.status().servers]
    assert not any(ProcessIdentity.of(pid) for pid in pids if pid is not None)


def test_a_coordinator_that_fails_takes_the_rest_down_and_shows_its_log(
    dev_cluster: Callable[..., DevCluster],
) -> None:
    def failing(broker: KafkaBroker) -> Sequence[str]:
        return [sys.executable, "-c", "raise SystemExit('no such option: --zookeeper')"]

    cluster = dev_cluster(coordinators=True, coordinator_command=failing)
    with pytest.raises(DevClusterError, match=r"(?s)coordinator-1 ended with exit code 1 .*no such option"):
        cluster.up()
    assert cluster.status().down


def test_all_ends_with_an_owner_that_is_killed_and_the_next_comes_up(
    dev_cluster: Callable[..., DevCluster], tmp_path: Path
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "cluster"), "stay"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    try:
        assert owner.stdout.readline() == "up\n"
        assert dev_cluster().status().up
        for intruder in (dev_cluster().up, dev_cluster().down):
            with pytest.raises(DevClusterError, match=f"in use by process {owner.pid}"):
                intruder()
        assert dev_cluster().status().up, "an intruder disturbed the cluster"
    finally:
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        owner.stdin.close()
        owner.stdout.close()

    eventually(lambda: dev_cluster().status().down)
    with dev_cluster() as cluster:
        assert cluster.status().up


def test_a_cluster_left_running_is_seen_and_ended_by_the_next_process(
    dev_cluster: Callable[..., DevCluster], tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-c", OWNER, str(tmp_path / "cluster"), "detach"], check=True, timeout=120)
    left = dev_cluster().status()
    assert left.up

    again = dev_cluster()
    assert again.up() == left, "nothing is missing"
    again.detach()
    pids = {server.name: server.pid for server in left.servers}
    broker = ProcessIdentity.of(pids["kafka-1"] or 0)
    assert broker is not None
    broker.signal(signal.SIGKILL)
    eventually(lambda: not broker.alive())
    subprocess.run([sys.executable, "-c", OWNER, str(tmp_path / "cluster"), "detach"], check=True, timeout=120)
    mended = dev_cluster().status()
    assert {server.name for server in mended.servers if server.pid != pids[server.name]} == {"kafka-1"}
    assert (mended.zookeeper, mended.bootstrap_servers) == (left.zookeeper, left.bootstrap_servers)

    dev_cluster().down()
    assert dev_cluster().status().down
    dev_cluster().down()


@pytest.mark.long
def test_in_kraft_mode_only_what_is_missing_starts_and_a_cluster_grows_by_brokers_that_are_no_controllers(
    dev_cluster: Callable[..., DevCluster], tmp_path: Path
) -> None:
    def up(brokers: int) -> ClusterStatus:
        owner = [sys.executable, "-c", OWNER, str(tmp_path / "cluster"), "detach", str(brokers)]
        subprocess.run(owner, check=True, timeout=300)
        return dev_cluster().status()

    first = up(3)
    assert {server.state for server in first.servers if server.kind == "kafka"} == {"broker and controller"}
    TopicAdmin(first.bootstrap_servers).create("kept", partitions=3, replication=3)
    pids = {server.name: server.pid for server in first.servers}
    broker = ProcessIdentity.of(pids["kafka-2"] or 0)
    assert broker is not None
    broker.signal(signal.SIGKILL)
    eventually(lambda: not broker.alive())
    mended = up(3)
    assert {server.name for server in mended.servers if server.pid != pids[server.name]} == {"kafka-2"}
    with pytest.raises(
        DevClusterError, match=r"holds a cluster of Kafka 4\.3\.0 in KRaft mode \(--kraft\), not of Kafka 3"
    ):
        dev_cluster(brokers=3).up()

    dev_cluster().down()
    grown = up(4)
    assert grown.bootstrap_servers.startswith(f"{first.bootstrap_servers},")
    assert [server.state for server in grown.servers if server.name == "kafka-4"] == ["broker"]
    assert TopicAdmin(grown.bootstrap_servers).partition_count("kept") == 3
    dev_cluster().down()


@pytest.mark.long
def test_the_surviving_processes_of_a_half_killed_cluster_are_ended_before_it_starts_again(
    dev_cluster: Callable[..., DevCluster], tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-c", OWNER, str(tmp_path / "cluster"), "detach"], check=True, timeout=120)
    pids = {server.name: server.pid for server in dev_cluster().status().servers}
    broker, zookeeper = (ProcessIdentity.of(pids[name] or 0) for name in ("kafka-1", "zookeeper-1"))
    assert broker is not None
    assert zookeeper is not None
    broker.signal(signal.SIGKILL)
    zookeeper.signal(signal.SIGSTOP)
    eventually(lambda: zookeeper.paused() and not broker.alive())
    assert {server.name: server.state for server in dev_cluster().status().servers} == {
        "zookeeper-1": "paused",
        "kafka-1": "stopped",
    }
    said: list[str] = []

    with dev_cluster(on_progress=said.append) as cluster:
        assert cluster.status().up
        assert not zookeeper.alive()
    assert said[0] == "stopping zookeeper-1 of an earlier run"


def test_a_process_that_was_given_the_number_of_an_earlier_server_is_left_alone(
    dev_cluster: Callable[..., DevCluster], tmp_path: Path
) -> None:
    directory = tmp_path / "cluster"
    directory.mkdir()
    innocent = ChildProcess("innocent", ("sleep", "600"), tmp_path / "log")
    innocent.start()
    assert innocent.identity is not None
    earlier = ProcessIdentity(innocent.identity.pid, innocent.identity.started - 1)
    for boot, process in ((boot_id(), earlier), ("another boot of this machine", innocent.identity)):
        server = ServerRecord("kafka-1", "kafka", directory / "kafka-1" / "kafka-1.log", free_port(), process)
        save(directory, ClusterRecord((server,), boot, "3.9.2"))

        assert dev_cluster().status().down
        dev_cluster().down()

        assert innocent.running
    innocent.kill()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"version": 1, "boot_id"',
        '{"version": 2}',
        '{"version": 1, "boot_id": "b", "kafka_version": "3.9.2", "servers": [7]}',
        '{"version": 1, "boot_id": "b", "kafka_version": "3.9.2", "servers": [{"name": "x", "kind": "redis"}]}',
        json.dumps(
            {
                "version": 1,
                "boot_id": "b",
                "kafka_version": "3.9.2",
                "servers": [{"name": "k", "kind": "kafka", "log": "l", "port": 1, "pid": "all", "started": 0}],
            }
        ),
    ],
)
def test_an_invalid_cluster_file_is_reported_with_the_processes_that_may_belong_to_it(
    dev_cluster: Callable[..., DevCluster], tmp_path: Path, content: str
) -> None:
    directory = tmp_path / "cluster"
    directory.mkdir()
    (directory / "cluster.json").write_text(content, encoding="utf-8")
    meant = ChildProcess("meant", ("tail", "-f", str(directory / "cluster.json")), tmp_path / "log")
    meant.start()
    eventually(lambda: processes_mentioning(directory))  # right after its exec it has no command line yet
    verbs = (dev_cluster().up, dev_cluster().down, dev_cluster().status)

    for verb in verbs:
        with pytest.raises(DevClusterError, match=rf"(?s)cluster\.json: .*remove the file.*\n +{meant.pid}  tail -f"):
            verb()

    meant.kill()


def test_another_shape_of_cluster_does_not_take_over_the_data(
    dev_cluster: Callable[..., DevCluster], tmp_path: Path
) -> None:
    directory = tmp_path / "cluster"
    directory.mkdir()
    names = [("zookeeper-1", "zookeeper"), ("kafka-1", "kafka"), ("kafka-2", "kafka")]
    servers = tuple(ServerRecord(name, kind, directory / "log", free_port(), None) for name, kind in names)
    save(directory, ClusterRecord(servers, boot_id(), "3.9.2"))

    with pytest.raises(DevClusterError, match="holds a cluster of 2 brokers"):
        dev_cluster(brokers=1).up()
    with pytest.raises(DevClusterError, match="not 2 and 3"):
        dev_cluster(brokers=2, zookeepers=3).up()


def test_a_directory_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(DevClusterError, match=r"file/cluster cannot be used: .*use another directory"):
        DevCluster(tmp_path / "file" / "cluster").up()


def test_a_disk_that_is_full_is_reported_before_anything_starts(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        with pytest.raises(DevClusterError, match=r"only [78] MB are free in .*needs 256 MB"):
            DevCluster(disk / "cluster").up()
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert not list(disk.iterdir())


def test_a_cluster_needs_a_broker_and_a_zookeeper(tmp_path: Path) -> None:
    with pytest.raises(DevClusterError, match="0 brokers"):
        DevCluster(tmp_path, brokers=0)


def test_another_process_never_takes_the_port_of_a_server_that_is_down() -> None:
    asks = "from kafka_coord.dev.cluster.ports import free_port\nfor _ in range(500): print(free_port())"
    ours = {free_port() for _ in range(500)}
    told = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True).stdout
    theirs = {int(line) for line in told.split()}
    assert len(ours) == len(theirs) == 500
    assert not ours & theirs
