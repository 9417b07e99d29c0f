"""Tests that a broker with an unusable registration is skipped and reported, and that all others are used."""

from __future__ import annotations

import json
import logging

import pytest

from kafka_coord.channel.frames import encode
from kafka_coord.errors import BrokerError
from kafka_coord.frontends.socket.questions import MetadataDirectory
from kafka_coord.kafka.brokers import BrokerDirectory, bootstrap_servers
from kafka_coord.kafka.offsets import OffsetReader
from kafka_coord.model import PartitionSet, TopicPartition, Unreadable
from kafka_coord.model.offsets import LogRange
from kafka_coord.monitor.doctor import LagSight, Severity, examine
from kafka_coord.monitor.doctor.instances import check_brokers
from kafka_coord.zk import layout
from tests.monitor.listening import listening
from tests.monitor.written import Tree

pytestmark = pytest.mark.zookeeper

UNUSABLE = {2: "\ud800", 3: "kafka..example", 4: "a" * 64 + ".example"}


@pytest.fixture
def address(tree: Tree):
    with listening() as port:
        for number, host in {1: "127.0.0.1", **UNUSABLE}.items():
            value = {"version": 5, "endpoints": [f"PLAINTEXT://{host}:{port}"]}
            tree.put(layout.broker(number), json.dumps(value).encode())
        yield f"127.0.0.1:{port}"


def test_the_doctor_reports_each_unusable_broker_and_checks_the_others(tree: Tree, address: str) -> None:
    findings = list(check_brokers(tree.store))
    errors = [one for one in findings if one.severity is Severity.ERROR]
    assert [one.what.split()[0] for one in errors] == [layout.broker(number) for number in UNUSABLE]
    assert all("restart its broker" in one.todo for one in errors)
    assert [one.what for one in findings if one.severity is Severity.OK] == [
        "1 broker registered; all listeners accept connections"
    ]


def test_the_doctor_measures_lag_while_a_broker_is_down(tree: Tree, address: str) -> None:
    tree.put(layout.broker(5), b'{"version":5,"endpoints":["PLAINTEXT://127.0.0.1:1"]}')
    tree.topic("flights", 2)
    tree.offset("delays", "flights", 0, 55)

    def log_ranges(wanted: PartitionSet) -> tuple[dict[TopicPartition, LogRange], str]:
        return dict.fromkeys(wanted, LogRange(90, 100)), ""

    findings = list(examine(tree.store, "127.0.0.1:1", session_timeout_ms=10_000, lag=LagSight(log_ranges)))
    assert any("broker 5 cannot be reached" in one.what for one in findings)
    assert any("35 unread records are gone" in one.what for one in findings), findings


def test_a_new_consumer_uses_the_other_brokers_and_logs_each_unusable_one_once(
    tree: Tree, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory = BrokerDirectory(tree.store, lambda: None)
    with caplog.at_level(logging.WARNING):
        directory.step()
        directory.look_again()
        directory.step()
    assert directory.addresses == (address,)
    for number in UNUSABLE:
        assert len([one for one in caplog.messages if f"path={layout.broker(number)} " in one]) == 1


def test_lag_load_and_reset_use_the_other_brokers_and_name_each_unusable_one(tree: Tree, address: str) -> None:
    left_out: list[Unreadable] = []
    bootstrap = bootstrap_servers(tree.store, {}, left_out.append)
    assert bootstrap == address
    assert [one.path for one in left_out] == [layout.broker(number) for number in UNUSABLE]
    OffsetReader(bootstrap, {}).close()  # librdkafka accepts the address


def test_an_instance_sends_only_usable_brokers_to_consumers_without_zookeeper(tree: Tree, address: str) -> None:
    told = MetadataDirectory(tree.store, 1, age_s=1.0).read()
    assert dict(told.brokers) == {1: (f"PLAINTEXT://{address}",)}
    assert encode({"v": 1, "id": 1, "type": "cluster-metadata", **told.to_json()})


def test_the_note_if_no_broker_is_registered(tree: Tree) -> None:
    with pytest.raises(BrokerError, match="no live broker is registered"):
        bootstrap_servers(tree.store, {})
    assert bootstrap_servers(tree.store, {"bootstrap.servers": "b:1"}) == "b:1"


def test_the_note_if_no_broker_offers_the_protocol(tree: Tree) -> None:
    tree.put(layout.broker(1), b'{"version":5,"endpoints":["PLAINTEXT://127.0.0.1:9092"]}')
    with pytest.raises(BrokerError, match="speaks SSL"):
        bootstrap_servers(tree.store, {"security.protocol": "ssl"})
