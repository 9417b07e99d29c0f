"""Kafka's topics, and the groups that subscribe to them, as the listeners last saw them. Rebuilt after every
election."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from kafka_coord.model import Member, Subscription, TopicInfo


class GroupRegistry:
    """The subscriptions of all groups, kept in the original design's ``consumer_groups_per_topic`` and
    ``groups_with_wildcard_topics``. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.consumer_groups_per_topic: dict[str, set[str]] = {}
        self._static_topics: dict[str, frozenset[str]] = {}
        self._patterns: dict[str, tuple[Subscription, ...]] = {}

    @property
    def groups_with_wildcard_topics(self) -> set[str]:
        with self._lock:
            return set(self._patterns)

    def update(self, group: str, members: Iterable[Member]) -> bool:
        """Replaces the group's subscriptions with those of its members. Returns whether they changed."""
        return self.put(group, {id(m.subscription): m.subscription for m in members}.values())

    def put(self, group: str, subscriptions: Collection[Subscription]) -> bool:
        """Like :meth:`update`, but takes subscriptions instead of members."""
        topics = frozenset(t for s in subscriptions if not s.is_wildcard for t in s.topics)
        wildcards = {(s.kind, s.pattern): s for s in subscriptions if s.is_wildcard}
        with self._lock:
            before = self._static_topics.get(group, frozenset())
            interests = topics, tuple(wildcards.values())
            changed = interests != (before, self._patterns.get(group, ()))
            for topic in before - topics:
                self._forget_interest(topic, group)
            for topic in topics - before:
                self.consumer_groups_per_topic.setdefault(topic, set()).add(group)
            self._static_topics[group] = topics
            self._patterns.pop(group, None)
            if wildcards:
                self._patterns[group] = interests[1]
        return changed

    def drop(self, group: str) -> None:
        """Forgets a removed group."""
        with self._lock:
            for topic in self._static_topics.pop(group, ()):
                self._forget_interest(topic, group)
            self._patterns.pop(group, None)

    def groups_for_topic(self, topic: str) -> frozenset[str]:
        """Returns the groups that subscribe to ``topic``, by name or by pattern. Includes groups whose pattern has not
        been matched against the topic yet: a slow pattern must not block a listener, so the match is left to the
        group's next pass."""
        with self._lock:
            by_name = frozenset(self.consumer_groups_per_topic.get(topic, ()))
            patterns = [(g, wanted) for g, wanted in self._patterns.items() if g not in by_name]
        return by_name | {g for g, wanted in patterns if any(not s.knows(topic) or s.wants(topic) for s in wanted)}

    def clear(self) -> None:
        with self._lock:
            self.consumer_groups_per_topic.clear()
            self._static_topics.clear()
            self._patterns.clear()

    def _forget_interest(self, topic: str, group: str) -> None:
        groups = self.consumer_groups_per_topic.get(topic)
        if groups is not None:
            groups.discard(group)
            if not groups:
                del self.consumer_groups_per_topic[topic]


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
