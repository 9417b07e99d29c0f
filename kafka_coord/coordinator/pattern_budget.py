"""Patterns of a group matched with all topics, a little at a time, so that other groups need not wait."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kafka_coord.model import Observation, SubscriptionKind, TopicInfo
from kafka_coord.zk.store import Clock

log = logging.getLogger(__name__)

BUDGET_S = 0.1
"""How long one look may match patterns before the next group has its turn."""

_Patterns = frozenset[tuple[SubscriptionKind, str]]


class PatternBudget:
    """``plan`` asks each pattern about each topic; what was answered once costs nothing (``model.pattern``). Here the
    first asking is done, within a budget, before the group is planned. One thread."""

    def __init__(self) -> None:
        self._done: dict[str, tuple[Mapping[str, TopicInfo], _Patterns]] = {}
        self._said: set[str] = set()

    def done(self, group: str, observation: Observation, clock: Clock) -> bool:
        """Whether every pattern of the group is matched; if not, go on with other groups, then ask again."""
        subscriptions = {
            (m.subscription.kind, m.subscription.pattern): m.subscription
            for m in observation.members.values()
            if m.subscription.is_wildcard
        }
        patterns, topics = frozenset(subscriptions), observation.topics
        before = self._done.get(group)
        if before is not None and before[0] is topics and patterns <= before[1]:
            return True
        until = clock.monotonic() + BUDGET_S
        for subscription in subscriptions.values():
            for topic in topics:
                if subscription.knows(topic):
                    continue
                subscription.wants(topic)
                if clock.monotonic() > until:
                    self._say(group, len(patterns), len(topics))
                    return False
        self._said.discard(group)
        if patterns:
            self._done[group] = topics, patterns
        return True

    def forget(self, group: str) -> None:
        self._done.pop(group, None)
        self._said.discard(group)

    def _say(self, group: str, patterns: int, topics: int) -> None:
        if group not in self._said:
            self._said.add(group)
            log.info(
                "matching slow patterns with %d topics, other groups going first group=%s patterns=%d",
                topics,
                group,
                patterns,
            )
