"""Tests of ``/metrics`` and ``/health`` of a running instance."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from kafka_coord.coordinator.handler import RebalanceRequestHandler
from kafka_coord.coordinator.reporting import StuckGroup
from kafka_coord.errors import SettingsError
from kafka_coord.monitor.metrics import STUCK_S, MetricsServer, health
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


def test_metrics_show_the_leadership_and_the_states_of_groups(world: World, served: MetricsServer):
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    world.store.ensure_path(layout.registration("delays", "garbled"))
    wanted = ("unreadable_znodes 1.0", 'kafka_coord_groups{state="Stable"} 1.0')
    lines = eventually(lambda: (found := get(served, "/metrics")) and all(one in found for one in wanted) and found)
    assert "kafka_coord_elected 1.0" in lines
    assert "kafka_coord_epoch 1.0" in lines
    assert "kafka_coord_passes_total" in lines
    assert float(lines.split("kafka_coord_zookeeper_session_lease_seconds ")[-1].split()[0]) > 0
    assert 'kafka_coord_rebalances_total{cause="member-joined"} 1.0' in lines
    assert "kafka_coord_rebalance_seconds_count 1.0" in lines


def test_health_is_good_while_connected_and_fails_after_the_end(elected: Instance, served: MetricsServer):
    assert json.loads(get(served, "/health"))["elected"] is True
    elected.stop()
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(served, "/health")
    with refused.value as answer:
        assert answer.code == 503
        assert json.loads(answer.read())["healthy"] is False


@pytest.mark.parametrize(("ownerless", "undecided", "status"), [(0, False, 200), (3, False, 503), (0, True, 503)])
def test_undecided_groups_and_partitions_without_owners_are_counted_and_fail_health(
    elected: Instance,
    served: MetricsServer,
    monkeypatch: pytest.MonkeyPatch,
    ownerless: int,
    undecided: bool,
    status: int,
):
    stuck = StuckGroup("delays", 31.0, "the stored target cannot be read", ownerless, undecided)
    monkeypatch.setattr(RebalanceRequestHandler, "stuck_groups", lambda _: [stuck])
    metrics = get(served, "/metrics")
    assert "kafka_coord_stuck_groups 1.0" in metrics
    assert f"kafka_coord_undecided_groups {float(undecided)}" in metrics
    assert f"kafka_coord_ownerless_partitions {float(ownerless)}" in metrics
    healthy, said = health(elected.service, elected.store)
    assert healthy is (status == 200)
    assert ("group delays has not settled for 31 s" in str(said["problems"])) is not healthy


def test_a_handler_or_gateway_that_hangs_fails_health(elected: Instance, monkeypatch: pytest.MonkeyPatch):
    gateway = SimpleNamespace(step_age_s=0.1)
    healthy, said = health(elected.service, elected.store, gateway)  # type: ignore[arg-type]
    assert healthy
    assert said["gateway_step_age_s"] == 0.1
    assert 0 <= said["handler_step_age_s"] < STUCK_S
    gateway.step_age_s = STUCK_S + 1
    assert health(elected.service, elected.store, gateway)[1]["problems"] == [  # type: ignore[arg-type]
        f"the gateway has not completed a step for {STUCK_S + 1:.0f} s"
    ]
    monkeypatch.setattr(RebalanceRequestHandler, "age_s", lambda _: STUCK_S + 2)
    assert health(elected.service, elected.store)[1]["problems"] == [
        f"the handler has not completed a step for {STUCK_S + 2:.0f} s"
    ]


def test_a_listener_whose_thread_has_ended_fails_health(elected: Instance):
    dead = threading.Thread(target=int, name="managed-groups")
    dead.start()
    dead.join()
    healthy, said = health(elected.service, elected.store, threads=[threading.current_thread(), dead])
    assert not healthy
    assert said["problems"] == ["the listener thread managed-groups has ended; restart this instance. Its log says why"]


def test_the_answer_to_an_unknown_path_names_the_existing_ones(served: MetricsServer):
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(served, "/")
    with refused.value as answer:
        assert b"/metrics" in answer.read()


def test_a_port_in_use_causes_a_clear_error(elected: Instance):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SettingsError, match="cannot listen on"):
            MetricsServer(address, elected.service, elected.store)
