"""Reads the identity of a topic from Kafka's own znode (ADR 42)."""

from __future__ import annotations

from kafka_coord.model import is_topic_id
from kafka_coord.model import json_fields as fields
from kafka_coord.zk.store import Node


def topic_identity(value: fields.Json, node: Node) -> tuple[str, str]:
    """Returns the identity of the topic whose znode contains ``value``, and its former identity if Kafka has given it
    an id since; see :class:`kafka_coord.model.TopicInfo`."""
    topic_id, czxid = value.get("topic_id"), str(node.stat.czxid)
    if isinstance(topic_id, str) and is_topic_id(topic_id):
        return topic_id, czxid
    return czxid, ""
