"""``serve`` as a process: registers, reports ready, is elected, stops; and what prevents that."""

from __future__ import annotations

import signal
import socket
import urllib.request
from pathlib import Path

from kafka_coord.dev.cluster.ports import free_port
from kafka_coord.monitor.cluster import read_cluster
from kafka_coord.zk import layout
from tests.cli.running import started
from tests.coordinator.harness import World
from tests.monitor.written import Tree
from tests.waiting import eventually


def test_serve_registers_coordinates_reports_ready_and_resigns_at_sigterm(
    world: World, zk_hosts: str, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(30)
        address = f"127.0.0.1:{free_port()}"
        arguments = ("serve", "--broker-id", "7", "--listen-http", address, "-z", zk_hosts)
        with started(*arguments, NOTIFY_SOCKET=str(tmp_path / "notify")) as process:
            assert systemd.recv(1000).startswith(b"READY=1\nSTATUS=registered as instance 7")
            eventually(lambda: read_cluster(world.store).coordinator)
            cluster = read_cluster(world.store)
            assert cluster.coordinator is not None
            assert cluster.coordinator.broker_id == 7
            assert cluster.coordinator.endpoints == {"http": address}
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as metrics:
                assert b"kafka_coord_elected" in metrics.read()
            world.consumer("c1").join()
            world.settles("c1", partitions=4)

            ran = process.ended(by=signal.SIGTERM)

        assert systemd.recv(1000) == b"STOPPING=1"
    assert ran.code == 0, ran.err
    assert "stopping: received SIGTERM" in ran.err
    assert "Traceback" not in ran.err
    assert world.store.exists(layout.COORDINATOR) is None, "resigned, not expired"
    assert world.store.exists(layout.instance(7)) is None


def test_serve_is_set_by_file_and_variable(world: World, zk_hosts: str, tmp_path: Path) -> None:
    file = tmp_path / "coord.toml"
    file.write_text(f'[zookeeper]\nhosts = "{zk_hosts}"\nsession_timeout_ms = 4000\n[serve]\nbroker_id = 1\n')
    with started("serve", "--config", str(file), KAFKA_COORD_SERVE_BROKER_ID="2") as process:
        eventually(lambda: read_cluster(world.store).instances)
        assert set(read_cluster(world.store).instances) == {2}
        assert process.ended(by=signal.SIGINT).code == 0


def test_a_second_serve_with_the_same_broker_id_says_so_and_ends(tree: Tree, zk_hosts: str) -> None:
    arguments = ("serve", "--broker-id", "1", "--session-timeout-ms", "6000", "-z", zk_hosts)
    with started(*arguments) as first:
        eventually(lambda: read_cluster(tree.store).instances)
        with started(*arguments) as second:
            ran = second.ended(within_s=60)
        assert first.process.poll() is None
        first.ended(by=signal.SIGTERM)
    assert ran.code != 0
    assert "Traceback" not in ran.err
    last = ran.err.strip().splitlines()[-1]
    assert last.startswith("kafka-coord: ")
    assert "1" in last


def test_serve_waits_for_a_zookeeper_that_is_not_up_yet_and_can_be_stopped() -> None:
    with started(
        "serve", "--broker-id", "1", "-z", "127.0.0.1:1", KAFKA_COORD_ZOOKEEPER_CONNECT_TIMEOUT_MS="300"
    ) as process:
        eventually(lambda: "waiting for ZooKeeper: no ZooKeeper at 127.0.0.1:1" in process.err.read_text())
        ran = process.ended(by=signal.SIGTERM)
    assert ran.code == 0


def test_secrets_are_in_no_log_line(world: World, zk_hosts: str) -> None:
    with started(
        "serve",
        "--broker-id",
        "1",
        "--log-level",
        "DEBUG",
        "-z",
        zk_hosts,
        KAFKA_COORD_ZOOKEEPER_DIGEST="alice:hunter2",
    ) as process:
        eventually(lambda: read_cluster(world.store).instances)
        ran = process.ended(by=signal.SIGTERM)
    assert ran.code == 0
    assert "DEBUG" in ran.err
    assert "hunter2" not in ran.err
