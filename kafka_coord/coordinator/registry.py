"""Maps topics to the groups that subscribe to them. The maps are rebuilt after every election."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable

from kafka_coord.model import Member, Subscription


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
