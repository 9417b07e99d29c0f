"""The ids that Kafka gives topics from 2.8 on, as ZooKeeper has them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from contextlib import suppress

from kafka_coord.errors import MalformedValue
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetData, Node, Store

Assigned = tuple[tuple[bytes, tuple[int, ...]], ...]
"""Partitions by topic id."""


class TopicIds:
    """See above. One thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ids: dict[str, bytes | None] = {}

    def get(self, topic: str) -> bytes | None:
        return self._ids.get(topic)

    def learn(self, topics: Iterable[str]) -> None:
        """Reads the ids of these topics, as a topic may have been made anew. One that is gone keeps its id. Raises
        :class:`StoreError`."""
        names = list(topics)
        nodes = self._store.read_many([GetData(layout.broker_topic(topic)) for topic in names]) if names else ()
        for topic, node in zip(names, nodes, strict=True):
            path = layout.broker_topic(topic)
            with suppress(MalformedValue, binascii.Error):
                if isinstance(node, Node):
                    written = fields.text(fields.load_object(node.data, path), "topic_id", path)
                    self._ids[topic] = base64.urlsafe_b64decode(written + "==")


def grouped(partitions: Iterable[tuple[bytes, int]]) -> Assigned:
    found: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        found.setdefault(topic_id, []).append(partition)
    return tuple((topic_id, tuple(numbers)) for topic_id, numbers in found.items())
