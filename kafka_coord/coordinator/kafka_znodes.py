"""Decodes Kafka's own topic znodes, in the formats of all versions up to 3.9. This project never writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kafka_coord.errors import MalformedValue
from kafka_coord.model import TopicInfo, is_topic_id
from kafka_coord.model import json_fields as fields
from kafka_coord.model.names import is_legal
from kafka_coord.model.partitions import MAX_PARTITION
from kafka_coord.zk import layout
from kafka_coord.zk.store import Node

_CZXID = re.compile(r"[0-9]{1,19}")


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
    topic_id, czxid = _topic_id(value.get("topic_id")), str(node.stat.czxid)
    return TopicInfo(
        name=name,
        partitions=frozenset(replicas),
        identity=topic_id or czxid,
        replica_racks={number: found for number, found in racks.items() if found},
        former_identity=czxid if topic_id else "",
    )


def _topic_id(written: Any) -> str:
    return written if isinstance(written, str) and is_topic_id(written) else ""


def is_identity(written: str) -> bool:
    """Returns whether ``written`` has the format of a topic's identity: its id or the czxid of its znode. The format is
    strict, because offsets stored under a different identity are removed."""
    return is_topic_id(written) or _CZXID.fullmatch(written) is not None
