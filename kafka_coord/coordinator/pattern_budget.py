"""Matches a group's patterns against all topics in small batches, so that other groups do not have to wait."""

from __future__ import annotations

import logging

from kafka_coord.coordinator.memory import GroupMemory, Matched
from kafka_coord.model import Observation
from kafka_coord.zk.store import Clock

log = logging.getLogger(__name__)

BUDGET_S = 0.1
"""The number of seconds that one pass may spend on matching before other groups get their turn."""


def match_patterns(memory: GroupMemory, observation: Observation, clock: Clock) -> bool:
    """Matches the group's patterns. Returns whether all of them are done. If not, call this function again once the
    other groups have had their turn.

    ``plan`` matches each pattern against each topic, which is slow only the first time, because results are cached
    (``model.pattern``). This function fills the cache, within a budget, before the group is planned.
    """
    subscriptions = {
        (m.subscription.kind, m.subscription.pattern): m.subscription
        for m in observation.members.values()
        if m.subscription.is_wildcard
    }
    patterns, topics = frozenset(subscriptions), observation.topics
    before = memory.matched
    if before is not None and before.topics is topics and patterns <= before.patterns:
        return True
    until = clock.monotonic() + BUDGET_S
    for subscription in subscriptions.values():
        for topic in topics:
            if subscription.knows(topic):
                continue
            subscription.wants(topic)
            if clock.monotonic() > until:
                _log_once(memory, len(patterns), len(topics))
                return False
    memory.matching_was_logged = False
    if patterns:
        memory.matched = Matched(topics, patterns)
    return True


def _log_once(memory: GroupMemory, patterns: int, topics: int) -> None:
    if not memory.matching_was_logged:
        memory.matching_was_logged = True
        log.info(
            "matching slow patterns against %d topics; other groups go first group=%s patterns=%d",
            topics,
            memory.group,
            patterns,
        )
