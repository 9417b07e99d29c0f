"""``/metrics`` and ``/health`` of a running instance."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from kafka_coord.errors import SettingsError
from kafka_coord.monitor.metrics import MetricsServer
from kafka_coord.zk import layout
from tests.coordinator.conftest import world
from tests.coordinator.harness import Instance, World
from tests.waiting import eventually

__all__ = ["world"]

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def elected(world: World) -> Instance:
    return world.instance(1).start_elected()


@pytest.fixture
def served(elected: Instance) -> Iterator[MetricsServer]:
    server = MetricsServer("127.0.0.1:0", elected.service, elected.store)
    yield server
    server.close()


def get(server: MetricsServer, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=20) as answer:
        return answer.read().decode()


def test_metrics_tell_who_leads_and_how_the_groups_are(world: World, served: MetricsServer):
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    world.store.ensure_path(layout.registration("delays", "garbled"))
    wanted = ("unreadable_znodes 1.0", 'kafka_coord_groups{state="Stable"} 1.0')
    lines = eventually(lambda: (found := get(served, "/metrics")) and all(one in found for one in wanted) and found)
    assert "kafka_coord_elected 1.0" in lines
    assert "kafka_coord_epoch 1.0" in lines
    assert "kafka_coord_passes_total" in lines
    assert float(lines.split("kafka_coord_zookeeper_session_proven_seconds ")[-1].split()[0]) > 0


def test_health_is_ok_while_connected_and_not_once_closed(elected: Instance, served: MetricsServer):
    assert json.loads(get(served, "/health"))["elected"] is True
    elected.stop()
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(served, "/health")
    with refused.value as answer:
        assert answer.code == 503
        assert json.loads(answer.read())["healthy"] is False


def test_another_path_says_what_there_is(served: MetricsServer):
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(served, "/")
    with refused.value as answer:
        assert b"/metrics" in answer.read()


def test_a_taken_port_is_a_clear_error(elected: Instance):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SettingsError, match="cannot listen on"):
            MetricsServer(address, elected.service, elected.store)
