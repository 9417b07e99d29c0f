"""Reads the ids of topics from ZooKeeper. Kafka 2.8 and later versions assign these ids."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from contextlib import suppress

from kafka_coord.errors import MalformedValue
from kafka_coord.model import Ledger
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetData, Node, Store

Assigned = tuple[tuple[bytes, tuple[int, ...]], ...]
"""The partitions of each topic, by topic id."""


class TopicIds:
    """Caches topic ids. Use this class on one thread only."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ids: dict[str, bytes | None] = {}

    def get(self, topic: str) -> bytes | None:
        return self._ids.get(topic)

    def learn(self, topics: Iterable[str]) -> None:
        """Reads the ids of these topics again, because topics may be deleted and created again. Raises
        :class:`StoreError`."""
        names = sorted(topics)
        nodes = self._store.read_many([GetData(layout.broker_topic(topic)) for topic in names]) if names else ()
        for topic, node in zip(names, nodes, strict=True):
            path = layout.broker_topic(topic)
            if not isinstance(node, Node):
                self._ids[topic] = None
                continue
            with suppress(MalformedValue, binascii.Error):
                self._ids[topic] = _decoded(fields.text(fields.load_object(node.data, path), "topic_id", path))

    def of_ledger(self, group: str, consumer: str, topics: set[str]) -> dict[str, bytes]:
        """Returns the ids that these topics had when the consumer received the command to start them. Also reads their
        current ids. Raises :class:`StoreError`."""
        self.learn(topics)
        path = layout.ledger(group, consumer)
        (node,) = self._store.read_many([GetData(path)])
        found = {}
        with suppress(MalformedValue, binascii.Error):
            if isinstance(node, Node):
                ledger = Ledger.from_json(fields.load(node.data, path), consumer, node.stat.version, path)
                for topic, identity in ledger.topic_ids.items():
                    topic_id, space, _ = identity.rpartition(" ")
                    if space:
                        found[topic] = _decoded(topic_id)
        for topic in found.keys() & topics:
            self._ids.setdefault(topic, found[topic])  # the topic may exist although its znode cannot be read
        return found


def _decoded(topic_id: str) -> bytes:
    return base64.urlsafe_b64decode(topic_id + "==")


def grouped(partitions: Iterable[tuple[bytes, int]]) -> Assigned:
    """Returns the partitions, grouped by topic id."""
    found: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        found.setdefault(topic_id, []).append(partition)
    return tuple((topic_id, tuple(numbers)) for topic_id, numbers in found.items())
