"""Offsets over this project's own connections, from a broker that moves, hangs up, or answers oddly; and which sites
librdkafka serves instead."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from kafka_coord.errors import BrokerError
from kafka_coord.kafka.authentication import knows_all
from kafka_coord.kafka.client import OwnClient, connect, run_with
from kafka_coord.kafka.cluster import ClusterClient
from kafka_coord.kafka.librdkafka import LibrdkafkaClient
from kafka_coord.kafka.offsets import OffsetReader
from kafka_coord.model import PartitionSet, TopicPartition
from kafka_coord.model.offsets import LogRange
from tests.fuzzing.odd_broker import OddBroker, running

FLIGHTS = PartitionSet({"flights": [0, 1]})
P0, P1 = TopicPartition("flights", 0), TopicPartition("flights", 1)
PLAIN = {"sasl.username": "u", "sasl.password": "p"}


@pytest.fixture
def broker() -> Iterator[OddBroker]:
    with running() as one:
        yield one


@pytest.fixture
def reader(broker: OddBroker) -> Iterator[OffsetReader]:
    made = OffsetReader(f"127.0.0.1:{broker.port}", {}, timeout_s=3.0)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("properties", "is_own"),
    [
        ({}, True),
        ({"security.protocol": "ssl", "ssl.endpoint.identification.algorithm": "none"}, True),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", **PLAIN}, True),
        ({"security.protocol": "sasl_ssl", "sasl.mechanisms": "SCRAM-SHA-512", **PLAIN}, True),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, False),
        ({"security.protocol": "ssl", "ssl.ca.location": "probe"}, False),
        ({"security.protocol": "ssl", "enable.ssl.certificate.verification": "false"}, False),
        ({"broker.version.fallback": "0.9.0.1"}, False),
    ],
)
def test_librdkafka_serves_the_sites_whose_security_only_it_knows(properties: dict[str, str], is_own: bool) -> None:
    client = connect("127.0.0.1:1", properties)
    client.close()
    assert isinstance(client, OwnClient if is_own else LibrdkafkaClient)


def test_our_own_connections_know_no_kerberos() -> None:
    assert not knows_all({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"})


def test_librdkafka_takes_an_address_without_a_port() -> None:
    assert isinstance(connect("localhost", {}), LibrdkafkaClient)


def test_no_property_is_taken_that_librdkafka_does_not_know() -> None:
    with pytest.raises(BrokerError, match=r"librdkafka rejected the broker settings: .*no\.such\.property"):
        connect("127.0.0.1:1", {"no.such.property": "1"})


def test_the_offsets_of_the_partitions_that_exist(reader: OffsetReader) -> None:
    found = reader.ranges(FLIGHTS | PartitionSet({"flights": [2], "nowhere": [0]}))
    assert found.ranges == {P0: LogRange(0, 10), P1: LogRange(0, 10)}
    assert found.note == "the offsets of 2 of 4 partitions are unknown: the brokers do not know the partition"


@pytest.mark.parametrize("times", [1, 2])
def test_a_partition_whose_leader_moves_is_asked_for_once_more(
    broker: OddBroker, reader: OffsetReader, times: int
) -> None:
    answered, left = broker._calls["ListOffsets"], [times]

    def moved(request: Any, form: Any) -> Any:
        answer = answered(request, form)
        if left[0]:
            left[0] -= 1
            answer.topics[0].partitions[0].error_code = 6
        return answer

    broker._calls["ListOffsets"] = moved
    found = reader.latest(FLIGHTS)
    if times == 1:
        assert (found.offsets, found.note) == ({P0: 10, P1: 10}, "")
    else:
        assert len(found.offsets) == 1
        assert found.note == "the offsets of 1 of 2 partitions are unknown: the partition has no live leader"


def test_a_broker_that_hung_up_between_two_calls_is_connected_to_again(
    broker: OddBroker, reader: OffsetReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = broker.answer
    with monkeypatch.context() as patched:
        patched.setattr(broker, "answer", lambda frame, **rest: (answered(frame, **rest)[0], False))
        for _ in range(3):
            reader.latest(FLIGHTS)
    assert reader.latest(FLIGHTS).offsets == {P0: 10, P1: 10}


def test_a_silent_broker_does_not_keep_the_others_from_answering(broker: OddBroker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        bootstrap = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{broker.port}"
        reader = OffsetReader(bootstrap, {}, timeout_s=5.0)
        assert reader.latest(FLIGHTS).offsets == {P0: 10, P1: 10}
        reader.close()


def test_a_closed_reader_opens_nothing_again(broker: OddBroker) -> None:
    reader = OffsetReader(f"127.0.0.1:{broker.port}", {})
    assert reader.latest(FLIGHTS).offsets
    reader.close()
    assert reader.latest(FLIGHTS) == ({}, "lag is unknown: the connections to the brokers are closed")


def test_what_an_odd_broker_answers_is_at_most_unknown(broker: OddBroker, reader: OffsetReader) -> None:
    broker.spares_librdkafka = False
    for seed in range(100):
        broker.becomes(Random(seed))
        found, note = reader.ranges(FLIGHTS)
        assert found.keys() == {P0, P1} or note
        reader.refused(["flights", "nowhere"], {})
    broker.becomes(Random(0), sane=True)
    assert reader.latest(FLIGHTS).offsets == {P0: 10, P1: 10}


def test_an_event_loop_of_the_callers_thread_is_in_nobodys_way(reader: OffsetReader) -> None:
    async def asks() -> object:
        found = reader.latest(FLIGHTS).offsets, run_with(ClusterClient([]), lambda _: asyncio.sleep(0, "done"))
        reader.close()
        return found

    assert asyncio.run(asks()) == ({P0: 10, P1: 10}, "done")
