"""The topics of managed groups: the subscriptions of KIP-848 clients (topic names, a regular expression, or both), and
topic ids, which Kafka has assigned since 2.8 and ZooKeeper keeps."""

from __future__ import annotations

import binascii
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from kafka_coord.coordinator.image import read_holdings
from kafka_coord.errors import MalformedValue
from kafka_coord.model import Subscription, is_topic_id, topic_id_to_bytes
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetData, Node, Store

Assigned = tuple[tuple[bytes, tuple[int, ...]], ...]
"""The partitions of each topic, by topic id."""


class ManagedTopics(NamedTuple):
    """A subscription. A part that the client omitted because it is unchanged is ``None``."""

    names: frozenset[str] | None = None
    regex: str | None = None

    @property
    def is_told(self) -> bool:
        return self.names is not None or self.regex is not None

    def since(self, before: ManagedTopics) -> ManagedTopics:
        """Returns the subscription with any missing part taken from ``before``."""
        names = before.names if self.names is None else self.names
        regex = before.regex if self.regex is None else self.regex
        return ManagedTopics(names or frozenset(), regex or "")

    def subscription(self) -> Subscription:
        """Returns a subscription to all of the topics, combined into one pattern if there is a regular expression.
        Raises :class:`InvalidPattern`."""
        names = sorted(self.names or ())
        if not self.regex:
            return Subscription.to(names)
        if not names:
            return Subscription.matching(self.regex)
        return Subscription.matching("|".join([*(name.replace(".", "\\.") for name in names), f"(?:{self.regex})"]))


UNCHANGED = ManagedTopics()


class TopicIds:
    """Caches topic ids. Not thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ids: dict[str, bytes | None] = {}

    def get(self, topic: str) -> bytes | None:
        return self._ids.get(topic)

    def learn(self, topics: Iterable[str]) -> None:
        """Reads the ids of the given topics, even if they are cached: a topic may have been deleted and recreated.
        Raises :class:`StoreError`."""
        names = sorted(topics)
        nodes = self._store.read_many([GetData(layout.broker_topic(topic)) for topic in names]) if names else ()
        for topic, node in zip(names, nodes, strict=True):
            path = layout.broker_topic(topic)
            if not isinstance(node, Node):
                self._ids[topic] = None
                continue
            with suppress(MalformedValue, binascii.Error):
                self._ids[topic] = topic_id_to_bytes(fields.text(fields.load_object(node.data, path), "topic_id", path))

    def of_ledger(self, group: str, consumer: str, topics: set[str]) -> dict[str, bytes]:
        """Returns the ids that the consumer's topics had when it was told to start fetching them. Also reads the
        current ids of ``topics``. Raises :class:`StoreError`."""
        self.learn(topics)
        ((ledger, _, _),) = read_holdings(self._store, [(group, consumer)])
        stored = ledger.topic_ids if ledger is not None else {}
        ids = {topic: topic_id_to_bytes(identity) for topic, identity in stored.items() if is_topic_id(identity)}
        for topic in ids.keys() & topics:
            self._ids.setdefault(topic, ids[topic])  # the topic may exist although its znode cannot be read
        return ids


def grouped(partitions: Iterable[tuple[bytes, int]]) -> Assigned:
    """Returns the partitions grouped by topic id."""
    found: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        found.setdefault(topic_id, []).append(partition)
    return tuple((topic_id, tuple(numbers)) for topic_id, numbers in found.items())
