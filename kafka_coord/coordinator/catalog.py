"""All Kafka topics, as the topic listeners last saw them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType

from kafka_coord.model import TopicInfo


class TopicCatalog:
    """All Kafka topics. The listeners' thread writes them; the handler reads immutable snapshots."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: dict[str, TopicInfo] = {}
        self._snapshot: Mapping[str, TopicInfo] | None = MappingProxyType({})

    @property
    def topics(self) -> Mapping[str, TopicInfo]:
        with self._lock:
            if self._snapshot is None:
                self._snapshot = MappingProxyType(dict(self._topics))
            return self._snapshot

    def put(self, topic: TopicInfo) -> TopicInfo | None:
        """Stores a topic's current state and returns the previous one."""
        with self._lock:
            before = self._topics.get(topic.name)
            if before != topic:
                self._topics[topic.name] = topic
                self._snapshot = None
            return before

    def drop(self, name: str) -> bool:
        """Forgets a topic. Returns whether it was known."""
        with self._lock:
            known = self._topics.pop(name, None) is not None
            if known:
                self._snapshot = None
            return known

    def names(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._topics)

    def clear(self) -> None:
        with self._lock:
            self._topics.clear()
            self._snapshot = None
