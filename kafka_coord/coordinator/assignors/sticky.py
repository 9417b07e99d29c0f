"""``sticky``, the default assignor, balances first, then makes as few moves as possible, then prefers nearby
replicas."""

from __future__ import annotations

from kafka_coord.coordinator.assignors.base import AssignmentInputs, Target
from kafka_coord.coordinator.assignors.kept_partitions import as_sets, components, kept_shares
from kafka_coord.coordinator.assignors.load_balancing import balance_loads
from kafka_coord.coordinator.assignors.quotas import even_quotas, fill_quotas


class StickyAssignor:
    """Gives members with the same subscription equal numbers of partitions, to within one, with only the necessary
    moves.

    If subscriptions differ, the result is balanced in the sense of Kafka's sticky assignor: no single move improves it.
    """

    def assign(self, inputs: AssignmentInputs) -> Target:
        shares, pool = kept_shares(inputs)
        for members, topics in components(inputs):
            part = [shares[consumer] for consumer in members]
            if all(len(inputs.subscriptions[consumer]) == len(topics) for consumer in members):
                partitions = sum(len(inputs.topics[topic].partitions) for topic in topics)
                fill_quotas(part, topics, even_quotas(members, partitions), pool, inputs)
            else:
                balance_loads(part, topics, dict.fromkeys(members, 1), pool, inputs)
        return Target(as_sets(shares))
