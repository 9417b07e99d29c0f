"""Metadata over this project's own connections, and the versions of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from kafka_coord.classic_groups.machine import GroupLimits
from kafka_coord.dev.cluster.ports import free_port
from kafka_coord.errors import SettingsError
from kafka_coord.frontends.kafka.access import Access, BrokerAccess
from kafka_coord.kafka.connection import NoCommonVersion, newest_common
from kafka_coord.kafka.metadata import MetadataAsker, bootstraps
from kafka_coord.model import topic_id_to_bytes
from kafka_coord.model.broker import NamedBroker
from kafka_coord.wire.messages import message
from tests.coordinator.mirrored import topic_id
from tests.fuzzing.odd_broker import OddBroker, running

KNOWS = {1: {"a": topic_id(1), "b": topic_id(2)}, 2: {"b": topic_id(2)}}


@pytest.fixture
def brokers() -> Iterator[Mapping[int, OddBroker]]:
    with running() as one, running() as two:
        both = {1: one, 2: two}
        for number, broker in both.items():
            broker._calls["Metadata"] = lambda request, form, knows=KNOWS[number]: answer(request, form, knows, both)
        yield both


def answer(request: Any, form: Any, knows: Mapping[str, str], brokers: Mapping[int, OddBroker]) -> Any:
    partition, topic = form.struct("MetadataResponsePartition"), form.struct("MetadataResponseTopic")
    broker = form.struct("MetadataResponseBroker")
    topics = []
    for name, one in knows.items() if request.topics is None else ():
        parts = (partition(partition_index=0, leader_id=1, leader_epoch=3, replica_nodes=(1, 2)),)
        topics.append(topic(name=name, topic_id=topic_id_to_bytes(one), partitions=parts))
    names = {topic_id_to_bytes(one): name for name, one in knows.items()}
    for asked in request.topics or ():
        is_known = asked.topic_id in names
        topics.append(topic(name=names.get(asked.topic_id), topic_id=asked.topic_id, error_code=0 if is_known else 100))
    named = tuple(broker(node_id=one, host="127.0.0.1", port=at.port) for one, at in brokers.items())
    return form(brokers=named, topics=tuple(topics), cluster_id="c")


def test_each_broker_is_asked_in_turn_and_the_ids_at_every_one(brokers: Mapping[int, OddBroker]) -> None:
    asker = MetadataAsker({})
    addresses = [("127.0.0.1", broker.port) for broker in brokers.values()]
    told = [asker.listing("", addresses, None) for _ in range(4)]
    assert sorted(len(one.topics) for one in told) == [1, 1, 2, 2]
    assert {one.teller for one in told} == {1, 2}
    assert told[0].topics[0].replicas == {0: (1, 2)}
    assert told[0] is told[2], "the same answer is decoded once"
    by_id = asker.by_id({topic_id(1): "a", topic_id(9): "z"}, {topic_id(2): "b"}, told[0])
    assert {one.teller: (one.known, one.unknown) for one in by_id} == {
        1: (frozenset({topic_id(1), topic_id(2)}), frozenset({topic_id(9)})),
        2: (frozenset({topic_id(2)}), frozenset({topic_id(1), topic_id(9)})),
    }
    asker.close()


def test_a_broker_that_does_not_answer_costs_only_its_turn(brokers: Mapping[int, OddBroker]) -> None:
    asker = MetadataAsker({})
    addresses = [("127.0.0.1", 1), ("127.0.0.1", brokers[1].port)]
    assert [asker.listing("", addresses, None).teller for _ in range(3)] == [1, 1, 1]
    asker.close()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {
                "advertised.listeners": "INT://b1:9092,EXT://[::1]:9093",
                "listeners": "INT://:9092,EXT://:9093",
                "listener.security.protocol.map": "INT:PLAINTEXT,EXT:SASL_SSL",
            },
            {"INT": ("PLAINTEXT", "b1:9092"), "EXT": ("SASL_SSL", "[::1]:9093")},
        ),
        (
            {
                "advertised.listeners": None,
                "listeners": "PLAINTEXT://:9092,SSL://b9:9093,CONTROLLER://:9094",
                "controller.listener.names": "CONTROLLER",
            },
            {"PLAINTEXT": ("PLAINTEXT", "127.0.0.1:9092"), "SSL": ("SSL", "b9:9093")},
        ),
        ({"advertised.listeners": "INT://b1"}, None),
        (None, None),
    ],
)
def test_a_brokers_settings_tell_its_other_listeners(
    brokers: Mapping[int, OddBroker],
    settings: Mapping[str, str | None] | None,
    expected: Mapping[str, tuple[str, str]] | None,
) -> None:
    """None of a broker that refuses, or whose settings cannot be read."""

    def describe(request: Any, form: Any) -> Any:
        (asked,) = request.resources
        result, config = form.struct("DescribeConfigsResult"), form.struct("DescribeConfigsResourceResult")
        configs = tuple(config(name=name, value=value) for name, value in (settings or {}).items())
        return form(
            results=(result(error_code=0 if settings else 31, resource_name=asked.resource_name, configs=configs),)
        )

    brokers[1]._calls["DescribeConfigs"] = describe
    asker = MetadataAsker({})
    told = asker.listing("", [("127.0.0.1", brokers[1].port)], None)
    found = {
        one.broker_id: {at.name: (at.protocol, at.address) for at in one.listeners} for one in asker.described(told)
    }
    assert found.get(1) == expected
    away = replace(told, brokers={1: told.brokers[1], 7: NamedBroker("127.0.0.1", free_port())})
    asker.described(away)
    assert asker.unheard.keys() == {7}, "a broker that refuses has answered"
    asker.close()


@pytest.mark.parametrize(
    ("spoken", "supported", "expected"),
    [((0, 1), (0, 0), 0), ((0, 1), (1, 4), 1), ((1, 12), (0, 9), 9), (3, (0, 9), 3)],
)
def test_a_request_is_sent_in_the_newest_common_version(
    spoken: int | tuple[int, int], supported: tuple[int, int], expected: int
) -> None:
    assert newest_common("Metadata", spoken, {3: supported}) == expected


def test_without_a_common_version_the_error_names_the_request_and_the_releases() -> None:
    with pytest.raises(NoCommonVersion, match=r"versions 1 to 4 of DescribeConfigs.*Kafka 0\.11 to 4\.3, sends 0 to 0"):
        newest_common("DescribeConfigs", 0, {32: (1, 4)})


def test_bootstrap_addresses_may_name_their_listener() -> None:
    assert bootstraps("b1:9092,b2:9092,EXTERNAL=b1:9094,b2:9094") == {
        "": [("b1", 9092), ("b2", 9092)],
        "EXTERNAL": [("b1", 9094), ("b2", 9094)],
    }
    with pytest.raises(SettingsError, match="has no port"):
        bootstraps("b1")


def test_a_mechanism_that_only_librdkafka_knows_is_refused_with_the_list() -> None:
    with pytest.raises(SettingsError, match="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"):
        MetadataAsker({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"})


def test_a_broker_with_an_authorizer_that_tells_no_rights_is_named_with_the_releases_that_do() -> None:
    form = message("ApiVersionsResponse")
    entry = form.struct("ApiVersion")
    supported = form(api_keys=(entry(api_key=3, max_version=7), entry(api_key=29, max_version=1)))
    answers = {"ApiVersions": supported, "DescribeAcls": message("DescribeAclsResponse")()}

    async def ask(name: str, _version: int, _value: Any) -> Any:
        return answers[name]

    with pytest.raises(
        NoCommonVersion, match=r"versions 0 to 7 of Metadata.*Kafka 2\.4 to 4\.3 where the brokers have"
    ):
        asyncio.run(Access(ask, BrokerAccess(GroupLimits())).may_describe_cluster())
