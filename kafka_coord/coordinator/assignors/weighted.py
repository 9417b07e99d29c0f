"""``weighted`` shares partitions in proportion to the members' capacities. It is otherwise as sticky as ``sticky``."""

from __future__ import annotations

from kafka_coord.coordinator.assignors.base import AssignmentInputs, Target
from kafka_coord.coordinator.assignors.kept_partitions import as_sets, components, kept_shares
from kafka_coord.coordinator.assignors.load_balancing import balance_loads
from kafka_coord.coordinator.assignors.quotas import fill_quotas, proportional_quotas


class WeightedAssignor:
    """Gives a member of capacity 3 three times as many partitions as a member of capacity 1, as near as whole
    partitions allow.

    Members with the same subscription share by the largest remainder method. If subscriptions differ, partitions move
    until no single move would improve the balance.
    """

    def assign(self, inputs: AssignmentInputs) -> Target:
        shares, pool = kept_shares(inputs)
        for members, topics in components(inputs):
            part = [shares[consumer] for consumer in members]
            capacities = {consumer: inputs.members[consumer].capacity for consumer in members}
            if all(len(inputs.subscriptions[consumer]) == len(topics) for consumer in members):
                partitions = sum(len(inputs.topics[topic].partitions) for topic in topics)
                fill_quotas(part, topics, proportional_quotas(capacities, partitions), pool, inputs)
            else:
                balance_loads(part, topics, capacities, pool, inputs)
        return Target(as_sets(shares))
