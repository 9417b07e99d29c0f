"""A ``serve`` process says that it is ready only when it serves the groups whose partitions its broker leads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_coord.dev.cluster.coordinator import serve_beside
from kafka_coord.dev.cluster.ports import free_port
from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.groups.cluster import read_cluster
from tests.frontends.kafka.conftest import Front
from tests.frontends.kafka.peer import SESSION_MS
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
BROKER_ID = 2
READY, LOADED = "kafka_coord.serve ready ", "now coordinates a partition"


@pytest.fixture
def serving(front: Front, tmp_path: Path) -> Iterator[ChildProcess]:
    """Replaces the shared cluster's listener beside this broker, and restores it afterwards."""
    front.stop(BROKER_ID)
    command = [*serve_beside(BROKER_ID, front.cluster.zookeeper), "--listen-kafka", f"127.0.0.1:{free_port()}"]
    command += ["--broker-listener", front.cluster.broker(BROKER_ID).listener_address]
    process = ChildProcess("ready", tuple(command), tmp_path / "serve.log")
    process.start()
    try:
        yield process
    finally:
        process.stop()
        front.start(BROKER_ID)
        eventually(front.serves_every_group, within_s=60)


def test_every_partition_that_the_broker_leads_is_loaded_first(front: Front, serving: ChildProcess) -> None:
    other = front.listeners[1].instances
    serving.wait_until(lambda: READY in serving.log_since_start(), 60)
    led = sum(leader == BROKER_ID for leader in other.leaders.values())
    assert led > 0
    assert serving.log_since_start().partition(READY)[0].count(LOADED) == led
    eventually(lambda: read_cluster(front.store).instances[BROKER_ID].ready)
    sessions_s = SESSION_MS / 1000  # of peers of earlier tests, who are waited for until then
    eventually(lambda: not read_cluster(front.store).instances[BROKER_ID].waiting_for, within_s=sessions_s + 30)
