"""Tests of how consumers find brokers through the brokers' znodes, even when brokers start and stop."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kafka_coord import BrokerError, Consumer
from kafka_coord.channel.link import ask_cluster_metadata
from kafka_coord.dev.cluster.kafka import KafkaCluster
from kafka_coord.errors import MalformedValue
from kafka_coord.kafka.brokers import BrokerDirectory, choose
from kafka_coord.model import Broker, Listener
from kafka_coord.zk import connect, layout
from tests.consumer.by_hand import HandCoordinator
from tests.consumer.conftest import partitions_of
from tests.consumer.reading import Reader
from tests.simulation.store import Quiet, connected_store
from tests.waiting import eventually


@pytest.mark.parametrize(
    ("znode", "listeners"),
    [
        (
            b'{"jmx_port":-1,"timestamp":"1","host":"b1","version":1,"port":9092}',
            [Listener("PLAINTEXT", "PLAINTEXT", "b1:9092")],
        ),
        (
            b'{"version":2,"host":"b1","port":9092,"endpoints":["PLAINTEXT://b1:9092","SSL://b1:9093"]}',
            [Listener("PLAINTEXT", "PLAINTEXT", "b1:9092"), Listener("SSL", "SSL", "b1:9093")],
        ),
        (
            b'{"version":5,"host":null,"port":-1,"endpoints":["INSIDE://10.0.0.1:9092","OUT://[2001:db8::1]:9093"],'
            b'"listener_security_protocol_map":{"INSIDE":"PLAINTEXT","OUT":"SASL_SSL"},"rack":"r1","features":{}}',
            [Listener("INSIDE", "PLAINTEXT", "10.0.0.1:9092"), Listener("OUT", "SASL_SSL", "[2001:db8::1]:9093")],
        ),
    ],
    ids=["0.8", "0.9", "3.x"],
)
def test_broker_znodes_of_all_kafka_versions_are_read(znode: bytes, listeners: list[Listener]) -> None:
    assert list(Broker.from_znode(znode, 1, "/brokers/ids/1").listeners) == listeners


@pytest.mark.parametrize(
    "znode",
    [
        '{"endpoints":["A://h:²"]}'.encode(),  # digits according to isdigit(), but not to int()
        b'{"endpoints":["A://h:' + b"9" * 5_000 + b'"]}',  # more digits than int() takes
        b'{"endpoints":[' + b"[" * 900 + b"]" * 900 + b"]}",
        b"",
        b"[]",
        b'{"host":"b1"}',
        b'{"host":"","port":9092}',
        b'{"endpoints":"PLAINTEXT://b1:9092"}',
        b'{"endpoints":["b1:9092"]}',
        b'{"endpoints":["PLAINTEXT://b1:99999"]}',
        b'{"endpoints":["PLAINTEXT://b1:1"],"listener_security_protocol_map":[]}',
        b"[" * 100_000,
    ],
)
def test_the_error_for_a_malformed_broker_znode_names_its_path(znode: bytes) -> None:
    with pytest.raises(MalformedValue, match="/brokers/ids/1: "):
        Broker.from_znode(znode, 1, "/brokers/ids/1")


def test_a_listener_is_chosen_by_protocol_or_by_name() -> None:
    broker = Broker(1, (Listener("IN", "PLAINTEXT", "a:1"), Listener("OUT", "SASL_SSL", "b:2")))
    plain = Broker(2, (Listener("IN", "PLAINTEXT", "c:3"),))

    assert choose((broker, plain), "PLAINTEXT", None) == (("a:1", "c:3"), "")
    assert choose((broker, plain), "SASL_SSL", None) == (("b:2",), "")
    assert choose((broker, plain), "PLAINTEXT", "OUT") == (("b:2",), "")
    assert choose((), "SSL", None) == ((), "")
    addresses, problem = choose((broker, plain), "SSL", None)
    assert addresses == ()
    assert "speaks SSL" in problem
    assert "IN (PLAINTEXT), OUT (SASL_SSL)" in problem


@pytest.mark.zookeeper
def test_the_directory_follows_the_live_brokers_and_skips_unreadable_znodes(zk_hosts: str) -> None:
    store = connect(zk_hosts)
    try:
        woken: list[int] = []
        directory = BrokerDirectory(store, lambda: woken.append(1))
        assert directory.step() is False  # /brokers/ids does not exist
        store.ensure_path(layout.BROKER_IDS)
        store.create(layout.broker(1), b'{"version":1,"host":"b1","port":9092}')
        store.create(layout.broker(2), b"what is this")
        directory.look_again()
        assert directory.step() is True
        assert directory.addresses == ("b1:9092",)

        store.create(layout.broker(3), b'{"version":1,"host":"b3","port":9092}')
        eventually(lambda: woken)
        assert directory.step() is True
        assert directory.addresses == ("b1:9092", "b3:9092")
    finally:
        store.close()


def test_the_directory_reads_again_only_after_a_watch_event_or_a_request() -> None:
    doings: list[str] = []
    around = Quiet()
    around.before_effect = lambda _store, doing: doings.append(doing)  # type: ignore[method-assign]
    store = connected_store(around=around)
    store.ensure_path(layout.BROKER_IDS)
    directory = BrokerDirectory(store, lambda: None)
    directory.step()
    doings.clear()
    directory.step()
    assert doings == []
    directory.look_again()
    directory.step()
    assert doings


@pytest.mark.kafka
def test_the_error_for_a_protocol_that_no_broker_offers_names_the_offered_ones(
    make_consumer: Callable[..., Consumer], make_topic: Callable[..., str]
) -> None:
    consumer = make_consumer(topics=[make_topic()], kafka={"security.protocol": "ssl"})
    with pytest.raises(BrokerError, match=r"speaks SSL; they offer .*PLAINTEXT"):
        consumer.poll(30)


@pytest.mark.kafka
def test_consumers_continue_after_a_broker_dies_and_returns(
    kafka_cluster: KafkaCluster,
    make_consumer: Callable[..., Consumer],
    make_topic: Callable[..., str],
    produce: Callable[..., list[bytes]],
    coordinator: HandCoordinator,
) -> None:
    topic = make_topic(6, replication=3)
    numbers = range(6)
    consumer = make_consumer(topics=[topic])
    with Reader(consumer) as reader:
        coordinator.run_start(consumer.consumer_id, partitions_of(topic, *numbers))
        written = [value for number in numbers for value in produce(topic, number, 20)]
        eventually(lambda: len(reader.records) == len(written))

        broker = kafka_cluster.broker(3)
        broker.kill()
        try:
            written += [value for number in numbers for value in produce(topic, number, 20)]
            eventually(lambda: len(reader.records) == len(written), within_s=90)
        finally:
            broker.start()
        written += [value for number in numbers for value in produce(topic, number, 20)]
        eventually(lambda: len(reader.records) == len(written), within_s=90)
    assert sorted(value or b"" for value in reader.values) == sorted(written)  # no duplicates, no gaps
    assert reader.error is None
    assert consumer.stats.losses == 0


def test_a_broker_asked_as_if_it_were_an_instance_closes_the_connection_and_the_error_asks_about_its_port(
    kafka_cluster: KafkaCluster,
) -> None:
    with pytest.raises(OSError, match="is this the broker's port, rather than that of kafka-coord"):
        ask_cluster_metadata(kafka_cluster.bootstrap_servers.split(",")[0])
