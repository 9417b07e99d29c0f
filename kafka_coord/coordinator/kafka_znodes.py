"""Decodes Kafka's own topic znodes, in the formats of all versions up to 3.9. This project never writes them."""

from __future__ import annotations

from collections.abc import Mapping

from kafka_coord.errors import MalformedValue
from kafka_coord.model import TopicInfo
from kafka_coord.model import json_fields as fields
from kafka_coord.model.names import is_legal
from kafka_coord.model.partitions import MAX_PARTITION
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import topic_identity
from kafka_coord.zk.store import Node


def decode_topic(name: str, node: Node, broker_racks: Mapping[int, str]) -> TopicInfo:
    """Decodes ``/brokers/topics/<topic>``: ``{"version":3,"topic_id":"…","partitions":{"0":[1,2]}, …}``.

    The partition list is in the *data* (KAFKA-1075). Kafka 2.8 and later write ``topic_id``. Raises
    :class:`MalformedValue`.
    """
    where = layout.broker_topic(name)
    if not is_legal(name):
        raise MalformedValue(where, "not a legal topic name")
    value = fields.load_object(node.data, where)
    written = value.get("partitions")
    if not isinstance(written, dict):
        raise MalformedValue(where, "field 'partitions' is not an object of replica lists")
    replicas: dict[int, tuple[int, ...]] = {}
    for partition, brokers in written.items():
        number = fields.decimal(partition, MAX_PARTITION)
        if number is None:
            raise MalformedValue(where, f"{partition[:40]!r} is not a partition number")
        if not isinstance(brokers, list):
            raise MalformedValue(where, f"the replicas of partition {partition} are not a list")
        replicas[number] = tuple(b for b in brokers if isinstance(b, int))
    racks = {
        number: frozenset(broker_racks[b] for b in brokers if b in broker_racks)
        for number, brokers in (replicas.items() if broker_racks else ())
    }
    identity, former = topic_identity(value, node)
    return TopicInfo(
        name=name,
        partitions=frozenset(replicas),
        identity=identity,
        replica_racks={number: found for number, found in racks.items() if found},
        former_identity=former,
    )
