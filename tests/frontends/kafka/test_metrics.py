"""Tests that the metrics of an instance follow Prometheus's conventions, and that documents and alerts match them."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.coordinator.steps import GroupState
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.frontends.listening import Certificate
from kafka_coord.frontends.socket.gateway import LeadershipView
from kafka_coord.frontends.socket.server import GatewayServer
from kafka_coord.groups.group import AgeBy
from kafka_coord.groups.lag import LagService
from kafka_coord.groups.next_records import NextRecords, probe_with
from kafka_coord.model import Cause, GroupKind
from kafka_coord.monitor.metrics import LagSampler, MetricsServer
from kafka_coord.zk import connect
from tests.cli.running import Run
from tests.frontends.kafka.conftest import ELECTED, Front
from tests.frontends.kafka.peer import Peer
from tests.monitor.promtool import RULES, dashboard_expressions, promtool
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]

DOCUMENT = Path(__file__).parents[3] / "docs" / "observability.md"
MOST_GROUPS = 1
BOUNDED = {
    "by": set(AgeBy),
    "cause": set(Cause),
    "endpoint": {"kafka", "socket", "metrics"},
    "kind": set(GroupKind),
    "partition": {str(number) for number in range(50)},
    "protocol": {"consumer", "classic"},
    "state": set(GroupState),
}
"""The labels with a fixed set of values. The values of ``request`` and ``error`` are names from Kafka, and
those of ``of`` name what an instance presents."""
LABELS = {*BOUNDED, "error", "group", "le", "of", "request", "version"}


@pytest.fixture(scope="module")
def scraped(
    front: Front, service: CoordinatorService, coord: Run, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The metrics as Prometheus reads them, once each has a sample."""
    for number in (1, 2):
        TopicAdmin(front.brokers).create(f"measured-{number}", 1, replication=3)
        producer = Producer({"bootstrap.servers": front.brokers})
        producer.produce(f"measured-{number}", b"unread")
        assert producer.flush(60) == 0
        consumer = Consumer({"bootstrap.servers": front.bootstrap, "group.id": f"measured-{number}"})
        consumer.commit(offsets=[TopicPartition(f"measured-{number}", 0, 0)], asynchronous=False)
        consumer.close()
    kafka = front.listeners[ELECTED]
    with Peer(kafka) as peer:
        assert peer.ask("Heartbeat", 0, group_id="measured-3", generation_id=1, member_id="unknown").error_code
    leadership = LeadershipView()
    leadership.service = service
    gateway = GatewayServer("127.0.0.1:0", front.store, ELECTED, leadership)
    zookeeper = front.cluster.zookeeper
    own = tmp_path_factory.mktemp("tls") / "own.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(own))
    shown = {"kafka": Certificate(own, None)}
    ages = LagService(next_records=NextRecords(probe_with(lambda: front.brokers, {})))
    lags = LagSampler(lambda: connect(zookeeper), {}, lambda: True, most=MOST_GROUPS, interval_s=0.2, service=ages)
    server = MetricsServer("127.0.0.1:0", service, front.store, gateway.gateway, kafka, lags, renewed=shown)
    try:

        def read() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=20) as answer:
                return answer.read().decode()

        awaited = ("group_lag_records{", "group_lag_seconds{", "kafka_errors_total{")
        eventually(lambda: all(one in read() for one in awaited))
        yield read()
    finally:
        server.close()
        lags.close()
        gateway.close()


@pytest.fixture(scope="module")
def families(scraped: str) -> dict[str, Metric]:
    """This project's metrics, by name without ``_total``."""
    found = {one.name: one for one in text_string_to_metric_families(scraped)}
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "process_start_time_seconds"} <= found.keys()
    return {name: one for name, one in found.items() if not name.startswith("process_")}


def test_names_and_units_follow_prometheus_conventions(families: dict[str, Metric]) -> None:
    for name, family in families.items():
        assert re.fullmatch(r"kafka_coord_[a-z_]+[a-z]", name), name
        assert family.type in {"gauge", "counter", "histogram"}, name
        assert not re.search(r"_(ms|millis|milliseconds|minutes|kb|mb|percent|total|count|sum|bucket)(_|$)", name), name
        if "seconds" in name or "bytes" in name:
            assert name.endswith(("_seconds", "_bytes")), name
        if family.type == "counter":
            assert {sample.name for sample in family.samples} == {f"{name}_total"}, name
        if family.type == "histogram":
            assert name.endswith("_seconds"), name


def test_the_help_of_every_metric_is_a_sentence(families: dict[str, Metric]) -> None:
    for name, family in families.items():
        assert re.fullmatch(r"[A-Z0-9].{15,}\.", family.documentation), f"{name}: {family.documentation}"


def test_every_label_has_a_bounded_set_of_values(families: dict[str, Metric]) -> None:
    for name, family in families.items():
        assert family.samples, name
        for sample in family.samples:
            assert sample.labels.keys() <= LABELS, name
            for label, value in sample.labels.items():
                assert value in BOUNDED.get(label, {value}), f"{name}: {label}={value}"
        groups = {sample.labels.get("group") for sample in family.samples} - {None}
        assert len(groups) <= MOST_GROUPS, name
        assert not groups or name.startswith(("kafka_coord_group_lag_", "kafka_coord_group_gone_")), name


def test_promtool_reports_no_problems(scraped: str) -> None:
    command = promtool(), "check", "metrics"
    ran = subprocess.run(command, check=False, input=scraped, capture_output=True, text=True, timeout=60)
    # every Prometheus client gives the metrics of its own process this prefix
    complaints = [line for line in (ran.stdout + ran.stderr).splitlines() if not line.startswith("process_")]
    assert not complaints


def listed(families: dict[str, Metric]) -> set[str]:
    """The metrics as the document lists them, such as ``groups{state}``."""
    found = set()
    for name, family in families.items():
        exposed = f"{name}_total" if family.type == "counter" else name
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        found.add(exposed.removeprefix("kafka_coord_") + (f"{{{','.join(labels)}}}" if labels else ""))
    return found


ONLY_WITH_A_MIRROR = {"mirror_age_seconds"}


def test_the_document_lists_the_exposed_metrics(families: dict[str, Metric]) -> None:
    section = DOCUMENT.read_text().partition("| about | metrics |")[2]
    assert set(re.findall(r"`([^`]+)`", section)) == listed(families) | ONLY_WITH_A_MIRROR


def test_alerts_and_dashboard_use_only_exposed_metrics(scraped: str) -> None:
    families = text_string_to_metric_families(scraped)
    exposed = {sample.name for family in families for sample in family.samples}
    asked = set(re.findall(r"\b(?:kafka_coord|process)_\w+", f"{RULES.read_text()} {dashboard_expressions()}"))
    assert len(asked) > 40
    assert asked - exposed == set()
