"""``sticky``, the default: balanced, then as few moves as possible, then close to replicas, and deterministic."""

from __future__ import annotations

from kafka_coord.coordinator.assignors.base import AssignmentInputs, Target
from kafka_coord.coordinator.assignors.level import level
from kafka_coord.coordinator.assignors.quota import even_quotas, settle
from kafka_coord.coordinator.assignors.shares import as_sets, components, kept_shares


class StickyAssignor:
    """Members with the same subscription differ by at most one partition, and only necessary moves are made.

    With differing subscriptions it is balanced in the sense of Kafka's sticky assignor: no single move improves it.
    """

    def assign(self, inputs: AssignmentInputs) -> Target:
        shares, pool = kept_shares(inputs)
        for members, topics in components(inputs):
            part = [shares[consumer] for consumer in members]
            if all(len(inputs.subscriptions[consumer]) == len(topics) for consumer in members):
                partitions = sum(len(inputs.topics[topic].partitions) for topic in topics)
                settle(part, topics, even_quotas(members, partitions), pool, inputs)
            else:
                level(part, topics, dict.fromkeys(members, 1), pool, inputs)
        return Target(as_sets(shares))
