"""Tests of Kafka's topic and broker znodes in the formats of all versions."""

import pytest

from kafka_coord.coordinator.kafka_znodes import decode_topic
from kafka_coord.errors import MalformedValue
from kafka_coord.model import Broker
from kafka_coord.zk.store import Node, Stat


def node(data: bytes, czxid: int = 77) -> Node:
    return Node(data, Stat(czxid, czxid, 0, 0, 0, 0, 0, len(data), 0, czxid))


def test_a_topic_of_kafka_3_is_identified_by_its_topic_id_and_czxid():
    data = (
        b'{"removing_replicas":{},"partitions":{"1":[2,3],"0":[1,2]},"topic_id":"xyz","adding_replicas":{},"version":3}'
    )
    topic = decode_topic("flights", node(data), {1: "r1", 2: "r2"})
    assert topic.partitions == {0, 1}
    assert topic.identity == "xyz 77"
    assert topic.replica_racks == {0: {"r1", "r2"}, 1: {"r2"}}


def test_a_topic_of_kafka_0_8_is_identified_by_its_czxid():
    topic = decode_topic("flights", node(b'{"version":1,"partitions":{"0":[0]}}', czxid=4711), {})
    assert topic.identity == "4711"
    assert topic.partitions == {0}


def test_a_topic_without_partitions_is_an_empty_topic():
    assert decode_topic("flights", node(b'{"version":1,"partitions":{}}'), {}).partitions == frozenset()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"partitions":[]}',
        b'{"partitions":{"x":[1]}}',
        b'{"partitions":{"0":1}}',
        b'{"partitions":{"-1":[1]}}',
        b'{"partitions":{"99999999999":[1]}}',
        b'{"partitions":{"\xc2\xb2":[1]}}',
    ],
)
def test_a_malformed_topic_is_refused_with_its_path(data: bytes):
    with pytest.raises(MalformedValue, match="/brokers/topics/flights"):
        decode_topic("flights", node(data), {})


def test_an_illegal_topic_name_is_refused():
    with pytest.raises(MalformedValue, match="legal"):
        decode_topic("fl ights", node(b'{"version":1,"partitions":{"0":[0]}}'), {})


def test_a_brokers_rack_is_optional():
    assert Broker.from_znode(b'{"host":"h","port":9092,"rack":"r1"}', 1, "broker").rack == "r1"
    assert Broker.from_znode(b'{"host":"h","port":9092}', 1, "broker").rack is None
