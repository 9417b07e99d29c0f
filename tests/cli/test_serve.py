"""Tests of ``serve`` as a process: it registers, reports ready, is elected and stops, or reports an error."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from kafka_coord.cli import serve as serving
from kafka_coord.cli.serve import log_dead_thread
from kafka_coord.dev.cluster.ports import free_port
from kafka_coord.groups.cluster import read_cluster
from kafka_coord.zk import layout
from tests.cli.running import started
from tests.coordinator.harness import KafkaZnodes, World
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
            with urllib.request.urlopen(f"http://{address}/api/v1/cluster", timeout=20) as cluster_document:
                assert json.load(cluster_document)["coordinator"] == 7
            with urllib.request.urlopen(f"http://{address}/", timeout=20) as page:
                assert page.url == f"http://{address}/dashboard/"
            world.consumer("c1").join()
            world.settles("c1", partitions=4)

            ran = process.ended(by=signal.SIGTERM)

        assert systemd.recv(1000) == b"STOPPING=1"
    assert ran.code == 0, ran.err
    assert "stopping: received SIGTERM" in ran.err
    assert "Traceback" not in ran.err
    assert world.store.exists(layout.COORDINATOR) is None, "the instance must resign before it ends"
    assert world.store.exists(layout.instance(7)) is None


def test_serve_takes_settings_from_file_and_variables_and_logs_json(
    world: World, zk_hosts: str, tmp_path: Path
) -> None:
    file = tmp_path / "coord.toml"
    file.write_text(f'[zookeeper]\nhosts = "{zk_hosts}"\nsession_timeout_ms = 4000\n[serve]\nbroker_id = 1\n')
    variables = {"KAFKA_COORD_SERVE_BROKER_ID": "2", "KAFKA_COORD_SERVE_LOG_FORMAT": "json"}
    with started("serve", "--config", str(file), **variables) as process:
        eventually(lambda: read_cluster(world.store).instances)
        assert set(read_cluster(world.store).instances) == {2}
        eventually(lambda: {'"ready"', '"started"'} <= set(process.err.read_text().replace(",", " ").split()))
        ran = process.ended(by=signal.SIGINT)
    assert ran.code == 0
    said = {line["event"]: line for line in map(json.loads, ran.err.splitlines()) if "event" in line}
    assert {"ready", "elected", "started", "stopping", "stepped_down", "stopped"} <= said.keys()
    assert said["elected"]["broker_id"] == said["ready"]["broker_id"] == 2


def test_the_log_is_in_utc_wherever_the_instance_runs() -> None:
    variables = {"TZ": "America/New_York", "KAFKA_COORD_ZOOKEEPER_CONNECT_TIMEOUT_MS": "300"}
    with started("serve", "--broker-id", "1", "-z", f"127.0.0.1:{free_port()}", **variables) as process:
        eventually(lambda: "waiting for ZooKeeper" in process.err.read_text())
        ran = process.ended(by=signal.SIGTERM)
    written = datetime.strptime(ran.err.split(" INFO")[0], "%Y-%m-%d %H:%M:%S,%fZ").replace(tzinfo=UTC)
    assert abs(datetime.now(UTC) - written) < timedelta(minutes=30)


def test_a_signal_sets_the_log_level_to_debug_and_back(world: World, zk_hosts: str) -> None:
    with started("serve", "--broker-id", "1", "-z", zk_hosts) as process:
        eventually(lambda: read_cluster(world.store).coordinator)
        process.process.send_signal(signal.SIGUSR1)
        eventually(lambda: "log level: DEBUG, until" in process.err.read_text())
        world.consumer("c1").join()
        world.settles("c1", partitions=4)
        eventually(lambda: process.err.read_text().count(" DEBUG ") > 1)
        process.process.send_signal(signal.SIGUSR1)
        eventually(lambda: "log level: INFO, until" in process.err.read_text())
        ran = process.ended(by=signal.SIGTERM)
    quiet, _, after = re.split(".* log level: .*\n", ran.err)
    assert " DEBUG " not in quiet + after


def test_sighup_looks_at_renewed_files_and_does_not_end_the_instance(
    world: World, zk_hosts: str, tmp_path: Path
) -> None:
    authority, own, address = trustme.CA(), tmp_path / "own.pem", f"127.0.0.1:{free_port()}"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(own)
    arguments = ("serve", "--broker-id", "1", "--listen-channel", address, "--channel-cert-file", str(own))
    with started(*arguments, "-z", zk_hosts) as process:
        eventually(lambda: read_cluster(world.store).coordinator)
        own.write_text("half written")
        process.process.send_signal(signal.SIGHUP)
        eventually(lambda: "still using the earlier certificate" in process.err.read_text())
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(own)
        process.process.send_signal(signal.SIGHUP)
        eventually(lambda: "using the renewed certificate" in process.err.read_text())
        assert process.ended(by=signal.SIGTERM).code == 0


def test_sighup_does_not_end_an_instance_that_waits_for_zookeeper() -> None:
    variables = {"KAFKA_COORD_ZOOKEEPER_CONNECT_TIMEOUT_MS": "300"}
    with started("serve", "--broker-id", "1", "-z", f"127.0.0.1:{free_port()}", **variables) as process:
        eventually(lambda: "waiting for ZooKeeper" in process.err.read_text())
        process.process.send_signal(signal.SIGHUP)
        said = process.err.read_text().count("waiting for ZooKeeper")
        eventually(lambda: process.err.read_text().count("waiting for ZooKeeper") > said + 1)
        assert process.ended(by=signal.SIGTERM).code == 0


def test_serve_measures_the_lag_for_the_metrics_only_if_it_is_configured(world: World, zk_hosts: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    arguments = ("serve", "--broker-id", "1", "--listen-http", address, "-z", zk_hosts)
    variables = {"KAFKA_COORD_SERVE_LAG_METRICS_GROUPS": "5", "KAFKA_COORD_SERVE_HTTP_DASHBOARD": "no"}
    with started(*arguments, **variables) as process:
        eventually(lambda: "cannot measure the lag of the groups: no live broker" in process.err.read_text())
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as metrics:
            told = metrics.read().decode()
        assert "kafka_coord_group_lag_age_seconds " in told  # the age grows, so that an alert fires
        assert "kafka_coord_group_lag_records{" not in told
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{address}/dashboard/", timeout=20)
        assert process.ended(by=signal.SIGTERM).code == 0
    with started(*arguments[:3], "-z", zk_hosts, KAFKA_COORD_SERVE_LAG_METRICS_GROUPS="5") as process:
        assert process.ended().code == 2


def test_a_broker_id_of_no_broker_is_warned_of_once(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_FIRST_LOOK_S", 0.0)
    monkeypatch.setattr(serving, "_LOOK_EVERY_S", 0.0)
    KafkaZnodes(world.store).broker(5)
    for broker_id in (5, 77):
        warned = serving.Warned(broker_id, world.store, {})
        warned.look()
        warned.look()
    (said,) = (one.getMessage() for one in caplog.records if one.levelname == "WARNING")
    assert said.startswith("no broker 77 is registered (registered: 5)")


def test_a_second_serve_with_the_same_broker_id_ends_with_the_reason(tree: Tree, zk_hosts: str) -> None:
    arguments = ("serve", "--broker-id", "1", "--session-timeout-ms", "6000", "-z", zk_hosts)
    tree.store.ensure_path(layout.BROKER_IDS)
    with started(*arguments) as first:
        eventually(lambda: read_cluster(tree.store).instances)
        with started(*arguments) as second:
            ran = second.ended(within_s=60)
        assert first.process.poll() is None
        first.ended(by=signal.SIGTERM)
    assert ran.code != 0
    assert "Traceback" not in ran.err
    last = ran.err.strip().splitlines()[-1]
    assert last.startswith("kafka-coord: broker id 1 is taken by an instance on host ")
    assert last.endswith("Stop it, or use another broker id here")
    assert f", pid {first.process.pid}, since 20" in last
    waiting = [line for line in ran.err.splitlines() if "for its session to end" in line]
    assert 1 <= len(waiting) <= 3, "the wait must be logged once and then every 5 s"


def test_serve_waits_for_a_zookeeper_that_does_not_run_yet_and_can_be_stopped() -> None:
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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(threading, "excepthook", log_dead_thread)
    doomed = threading.Thread(target=lambda: 1 / 0, name="managed-groups")
    doomed.start()
    doomed.join()
    (record,) = caplog.records
    assert record.getMessage() == "thread managed-groups crashed, which is a bug; restart this instance"
    assert record.exc_info is not None
