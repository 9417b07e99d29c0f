"""Tests of ``dev up``, ``status`` and ``down``, as a new user runs them."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from kafka_coord.channel.link import ask_cluster_metadata
from kafka_coord.dev.cluster.ports import free_port
from tests.cli.running import run, started
from tests.waiting import eventually

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize(("mode", "kafka"), [((), "Kafka 3.9.2"), (("--kraft",), "Kafka 4.3.0")], ids=["3.9", "kraft"])
def test_a_cluster_starts_works_outlives_the_command_and_stops(
    tmp_path: Path, mode: tuple[str, ...], kafka: str
) -> None:
    directory = str(tmp_path / "dev")
    nothing = run("dev", "status", "--dir", directory)
    assert nothing.code == 7
    assert "start one with 'kafka-coord dev up'" in nothing.err

    try:
        port = str(free_port())
        with started("dev", "up", *mode, "--brokers", "1", "--channel-port", port, "--dir", directory) as process:
            up = process.ended(within_s=150)
        assert up.code == 0, up.err
        assert f"{kafka} in {directory}" in up.out
        found = run("dev", "status", "--dir", directory, "-o", "json").json()
        assert found["up"]
        assert {server["name"] for server in found["servers"]} == {"zookeeper-1", "kafka-1", "coordinator-1"}
        assert f"export KAFKA_COORD_ZOOKEEPER={found['zookeeper']}" in up.out
        assert all(Path(server["log"]).exists() for server in found["servers"])
        asked = ("coordinator", "status", "-o", "json")
        eventually(lambda: json.loads(run(*asked, zookeeper=found["zookeeper"]).out)["coordinator"] == 1)
        assert f"--bootstrap 127.0.0.1:{port}" in up.out
        metadata = ask_cluster_metadata(f"127.0.0.1:{port}")
        assert metadata.coordinator is not None
        assert metadata.coordinator.endpoint == f"127.0.0.1:{port}"
        assert f"bootstrap.servers={found['instance_servers']}" in up.out
        serves_kafka_clients(found["instance_servers"])
        eventually(lambda: run("doctor", zookeeper=found["zookeeper"]).code == 0, within_s=60)
        (dashboard,) = found["dashboards"]
        assert f"dashboard at {dashboard}" in up.out
        with urllib.request.urlopen(dashboard, timeout=30) as page:  # noqa: S310
            assert page.status == 200
        again = run("dev", "up", "--channel-port", port, "--dir", directory, "-o", "json")
        assert again.json() == found, "nothing was missing, so nothing was started"
        assert "all servers are already up" in again.err
    finally:
        with started("dev", "down", "--dir", directory) as process:
            down = process.ended(within_s=90)
    assert down.code == 0, down.err
    after = run("dev", "status", "--dir", directory)
    assert after.code == 9
    assert "not serving: zookeeper-1" in after.err


def serves_kafka_clients(servers: str) -> None:
    """Fails unless the broker advertises the instance's address and the instance coordinates groups."""
    client = Consumer({"bootstrap.servers": servers, "group.id": "any"})
    try:
        assert [f"{one.host}:{one.port}" for one in client.list_topics(timeout=30).brokers.values()] == [servers]

        def answers() -> bool:
            try:
                (found,) = client.committed([TopicPartition("flights", 0)], 5)
            except KafkaException:
                return False
            return found.error is None and found.offset < 0

        eventually(answers, within_s=60)
    finally:
        client.close()
