"""Tests of Kafka's topic and broker znodes in the formats of all versions."""

import pytest

from kafka_coord.dev.cluster.kafka_znodes import topic_value
from kafka_coord.errors import MalformedValue
from kafka_coord.model import Broker
from kafka_coord.zk.brokers import decode_topic
from kafka_coord.zk.store import Node, Stat


def node(data: bytes, czxid: int = 77) -> Node:
    return Node(data, Stat(czxid, czxid, 0, 0, 0, 0, 0, len(data), 0, czxid))


def test_a_topic_of_kafka_3_is_identified_by_its_topic_id_alone():
    data = (
        b'{"removing_replicas":{},"partitions":{"1":[2,3],"0":[1,2]},"topic_id":"TMyOC9fMQO2RvZzC_cfMOw",'
        b'"adding_replicas":{},"version":3}'
    )
    topic = decode_topic("flights", node(data), {1: "r1", 2: "r2"})
    assert topic.partitions == {0, 1}
    assert topic.identity == "TMyOC9fMQO2RvZzC_cfMOw"
    assert topic.replica_racks == {0: {"r1", "r2"}, 1: {"r2"}}


def test_a_topic_of_kafka_0_8_is_identified_by_its_czxid():
    topic = decode_topic("flights", node(b'{"version":1,"partitions":{"0":[0]}}', czxid=4711), {})
    assert topic.identity == "4711"
    assert topic.partitions == {0}


ID, OTHER = "TMyOC9fMQO2RvZzC_cfMOw", "Zk3lU1kTRXqFzCqj2SvbXw"


@pytest.mark.parametrize(
    ("stored", "topic_id", "czxid", "same"),
    [
        pytest.param(ID, ID, 99, True, id="ZooKeeper's data was moved to other servers"),
        pytest.param(ID, OTHER, 77, False, id="another id, in the same znode (KAFKA-14190)"),
        pytest.param("77", ID, 77, True, id="upgraded to 2.8"),
        pytest.param("76", ID, 77, False, id="upgraded to 2.8 and recreated"),
        pytest.param(ID, None, 77, True, id="written by a tool from before 2.8"),
        pytest.param("77", None, 77, True, id="before 2.8"),
        pytest.param("76", None, 77, False, id="recreated before 2.8"),
        pytest.param("", ID, 77, False, id="nothing is stored"),
    ],
)
def test_what_was_stored_belongs_to_a_topic_by_its_id(stored: str, topic_id: str | None, czxid: int, same: bool):
    topic = decode_topic("flights", node(topic_value(1, topic_id=topic_id), czxid), {})
    assert topic.is_same(stored) is same


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
