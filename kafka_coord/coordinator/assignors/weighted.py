"""``weighted``: in proportion to the members' capacities, and otherwise as sticky as ``sticky``."""

from __future__ import annotations

from kafka_coord.coordinator.assignors.base import AssignmentInputs, Target
from kafka_coord.coordinator.assignors.level import level
from kafka_coord.coordinator.assignors.quota import proportional_quotas, settle
from kafka_coord.coordinator.assignors.shares import as_sets, components, kept_shares


class WeightedAssignor:
    """A member of capacity 3 gets three times what one of capacity 1 gets, to the nearest whole partition.

    Members with the same subscription share by the largest remainder. Where subscriptions differ, partitions per
    capacity are levelled until no single move improves them.
    """

    def assign(self, inputs: AssignmentInputs) -> Target:
        shares, pool = kept_shares(inputs)
        for members, topics in components(inputs):
            part = [shares[consumer] for consumer in members]
            capacities = {consumer: inputs.members[consumer].capacity for consumer in members}
            if all(len(inputs.subscriptions[consumer]) == len(topics) for consumer in members):
                partitions = sum(len(inputs.topics[topic].partitions) for topic in topics)
                settle(part, topics, proportional_quotas(capacities, partitions), pool, inputs)
            else:
                level(part, topics, capacities, pool, inputs)
        return Target(as_sets(shares))
