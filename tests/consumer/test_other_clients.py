"""Tests that confluent-kafka's settings become arguments, and that what an application writes as for another client
causes an error that says what to do."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kafka_coord import AsyncConsumer, Consumer
from kafka_coord.consumer.fetchers import client_settings
from kafka_coord.consumer.other_clients import arguments_of, suggestion
from kafka_coord.errors import NotFound, SettingsError
from kafka_coord.testing import FakeCluster


def test_each_setting_becomes_an_argument_or_is_passed_to_librdkafka() -> None:
    config = {
        "bootstrap.servers": "broker1:9092",
        "group.id": "delays",
        "group.instance.id": "c1",
        "session.timeout.ms": "20000",
        "auto.offset.reset": "beginning",
        "enable.auto.commit": "false",
        "enable.auto.offset.store": True,
        "partition.assignment.strategy": "cooperative-sticky,range",
        "client.rack": "r1",
        "value.deserializer": bytes.decode,
        "fetch.min.bytes": 10,
    }
    assert arguments_of(config, {"topics": ["flights"], "kafka": {"fetch.max.bytes": 20}}, ["topics", "kafka"]) == {
        "group": "delays",
        "consumer_id": "c1",
        "session_timeout_ms": 20_000,
        "rejoin_grace_ms": 20_000,
        "auto_offset_reset": "earliest",
        "auto_commit_interval_ms": None,
        "assignor": "sticky",
        "rack": "r1",
        "value_deserializer": bytes.decode,
        "topics": ["flights"],
        "kafka": {
            "bootstrap.servers": "broker1:9092",
            "client.rack": "r1",
            "fetch.min.bytes": 10,
            "fetch.max.bytes": 20,
        },
    }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max.poll.interval.ms": 3}, "'max.poll.interval.ms' is not supported here: .* the group's rebalance timeout"),
        ({"enable.auto.offset.store": False}, "use commit"),
        ({"enable.auto.commit": "perhaps"}, "must be True or False, not 'perhaps'"),
        ({"session.timeout.ms": "long"}, "must be an integer, not 'long'"),
        ({"partition.assignment.strategy": "own"}, "use one of range, roundrobin, cooperative-sticky"),
        ({"group.instance.id": "c1"}, "consumer_id is given both"),
    ],
)
def test_the_error_for_an_unsupported_setting_says_what_to_do(config: dict[str, Any], message: str) -> None:
    given = {"consumer_id": "other"} if "group.instance.id" in config else {}
    with pytest.raises(SettingsError, match=message):
        arguments_of({"group.id": "delays", **config}, given, ["consumer_id"])


def test_the_error_for_a_misspelt_setting_names_the_closest_one() -> None:
    with pytest.raises(SettingsError, match=r"'group.id' is missing; .*groop.id.* \(did you mean 'group.id'\?\)"):
        arguments_of({"groop.id": "delays"}, {}, [])
    with pytest.raises(SettingsError, match=r'No such configuration property: "boostrap.servers" .*bootstrap.servers'):
        client_settings("delays", "c1", {"boostrap.servers": "broker1:9092"})
    assert suggestion("bootstrap_servers") == " (did you mean 'bootstrap.servers'?)"
    assert suggestion("colour") == ""


def test_all_that_is_wrong_in_a_configuration_is_listed_at_once() -> None:
    config = {
        "bootstrap_servers": "broker1:9092",
        "auto.offset.rest": "earliest",
        "max.poll.interval.ms": 3,
        "session.timeout.ms": "long",
    }
    with pytest.raises(SettingsError) as refused:
        Consumer.from_config(config, group="g", topic=["flights"])
    for each in (
        "\"bootstrap_servers\" (did you mean 'bootstrap.servers'?)",
        "\"auto.offset.rest\" (did you mean 'auto.offset.reset'?)",
        "'max.poll.interval.ms' is not supported here",
        "'session.timeout.ms' must be an integer",
        "there is no argument 'topic': use topics=[…]",
    ):
        assert each in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ({"auto_offset_rest": "earliest"}, "no argument 'auto_offset_rest' (did you mean 'auto_offset_reset'?)"),
        ({"group_id": "g"}, "no argument 'group_id': use group"),
        ({"group_instance_id": "c1"}, "no argument 'group_instance_id': use consumer_id"),
        (
            {"bootstrap_servers": "b:9092"},
            "give zookeeper='…', the brokers' zookeeper.connect, or",
        ),
        ({"sasl_username": "u"}, "use kafka={'sasl.username': …}"),
        ({"max_poll_interval_ms": 1}, "the group's rebalance timeout"),
        (
            {"colour": 1, "enable_auto_commit": False},
            "'colour'; there is no argument 'enable_auto_commit':",
        ),
        ({"zookeeper": {"group.id": "g"}}, "use Consumer.from_config(config, zookeeper='…', topics=[…])"),
        ({}, "group is missing"),
    ],
)
def test_an_argument_that_does_not_exist_says_what_is_meant(arguments: dict[str, Any], meant: str) -> None:
    for consumer in (Consumer, AsyncConsumer):
        with pytest.raises(SettingsError, match=re.escape(meant)):
            consumer(topics=["flights"], **arguments)


def test_a_call_as_of_another_client_says_what_is_meant() -> None:
    with FakeCluster() as cluster:
        cluster.create_topic("flights")
        cluster.produce("flights", b"v")
        consumer: Any = cluster.consumer(group="g", topics=["flights"], auto_offset_reset="earliest")
        record = consumer.poll(30.0)
        for call, meant in (
            (lambda: consumer.poll(timeout=1.0), "poll() has no argument 'timeout': use timeout_s"),
            (lambda: consumer.poll(timeout_ms=1), "use timeout_s, in seconds"),
            (lambda: consumer.consume(num_messages=2), "consume() has no argument 'num_messages': use max_records"),
            (lambda: consumer.streams[0].poll(max_records=2), "use consume(max_records, timeout_s)"),
            (lambda: consumer.commit(record), "commit({('flights', 0): 1}), not commit(Record)"),
            (lambda: consumer.commit(message=record), "commit() commits every record that you have received"),
            (lambda: consumer.commit([("flights", 0)]), "not commit(list)"),
            (lambda: consumer.pause(("flights", 0)), "give a list of partitions: [('flights', 0)], not ('flights', 0)"),
            (lambda: consumer.resume([0]), "a partition is a topic and a number, such as ('flights', 3), not 0"),
            (lambda: consumer.seek("flights", 3), "a partition is a topic and a number"),
            (lambda: consumer.seek("flights", 3, 17), "write seek(('flights', 3), 17), or 'earliest'"),
            (lambda: consumer.pause(("flights", 0), ("flights", 1)), "write pause([('flights', 3)])"),
            (consumer.resume, "write resume([('flights', 3)])"),
            (lambda: consumer.committed([], 5), "write committed([('flights', 3)])"),
            (lambda: consumer.committed([], timeout=5), "committed() has no argument 'timeout': use timeout_s"),
            (lambda: consumer.lag(("flights", 0)), "write lag()"),
            (lambda: consumer.close(5), "write close(timeout_s=10)"),
            (lambda: consumer.close(autocommit=False), "close() commits unless auto_commit_interval_ms=None"),
            (lambda: consumer.subscribe(["flights"], on_assign=print), "give it to the consumer's constructor"),
            (lambda: consumer.subscribe(pattern="f.*"), "use include"),
            (lambda: consumer.subscribe(["^f.*"]), "use include='f.*'"),
            (lambda: cluster.consumer("g", ["flights"]), "write consumer(group='delays', topics=['flights'])"),
            (lambda: Consumer("zk1:2181", "g", ["flights"]), "write Consumer('zk1:2181', group='delays', topics="),
            (lambda: Consumer.from_config({}, ["flights"]), "write Consumer.from_config(config, zookeeper="),
        ):
            with pytest.raises(SettingsError, match=re.escape(meant)):
                call()


def test_a_method_that_only_other_clients_have_says_what_to_use() -> None:
    with FakeCluster() as cluster:
        cluster.create_topic("flights")
        consumer: Any = cluster.consumer(group="g", topics=["flights"])
        for name, meant in (
            ("assign", ": the coordinator assigns partitions; to choose them yourself, keep your Kafka client"),
            ("commit_async", ": use commit(asynchronous=True), which returns a future"),
            ("getone", ": use poll(timeout_s)"),
            ("colour", ""),
        ):
            with pytest.raises(AttributeError, match=rf"^{re.escape(f'a consumer has no {name!r}{meant}')}$"):
                getattr(consumer, name)
        assert not hasattr(consumer, "colour")


def test_an_attribute_that_only_the_messages_of_other_clients_have_says_what_to_use() -> None:
    with FakeCluster() as cluster:
        cluster.create_topic("flights")
        cluster.produce("flights", b"v")
        record: Any = cluster.consumer(group="g", topics=["flights"], auto_offset_reset="earliest").poll(30.0)
        for name, meant in (("error", "never an error"), ("timestamp", "use record.timestamp_ms"), ("colour", "no 'c")):
            with pytest.raises(AttributeError, match=meant):
                getattr(record, name)


def test_an_error_within_a_call_stays_as_it_is() -> None:
    def fail(*_: object) -> None:
        raise TypeError("unsupported operand")

    with FakeCluster() as cluster:
        consumer: Any = cluster.consumer(group="g", topics=["flights"])
        with pytest.raises(TypeError, match="unsupported operand"):
            consumer.pause(map(fail, [1]))


def test_the_error_of_a_call_of_a_records_attribute_says_that_it_is_no_method() -> None:
    def value(record: Any) -> None:
        record.value()

    def offset(record: Any) -> None:
        record.offset()

    def other(_record: Any) -> None:
        len("flights")()  # type: ignore[operator]

    for use, meant in (
        (value, ["a record's attributes are not methods: use record.value, not record.value()"]),
        (offset, ["a record's attributes are not methods: use record.offset, not record.offset()"]),
        (other, []),
    ):
        with FakeCluster() as cluster:
            cluster.create_topic("flights")
            cluster.produce("flights", b"v")
            arguments = {"group": "g", "topics": ["flights"], "auto_offset_reset": "earliest"}
            with pytest.raises(TypeError) as failed, cluster.consumer(**arguments) as consumer:
                use(consumer.poll(30.0))
        assert getattr(failed.value, "__notes__", []) == meant


def test_a_fake_cluster_says_how_to_create_a_topic_or_a_partition() -> None:
    with FakeCluster() as cluster:
        for partition in (0, 3):
            call = f"cluster.create_topic('flights', partitions={partition + 1})"
            with pytest.raises(NotFound, match=re.escape(call)):
                cluster.produce("flights", b"v", partition=partition)
            cluster.create_topic("flights", partition + 1)
            assert cluster.produce("flights", b"v", partition=partition) == 0
