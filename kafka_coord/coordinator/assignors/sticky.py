"""``sticky``, the default assignor, and ``weighted``: balance comes first, then few moves, then nearby replicas.
``weighted`` distributes partitions in proportion to the members' capacities."""

from __future__ import annotations

from collections.abc import Mapping

from kafka_coord.coordinator.assignors.base import AssignmentInputs, Target
from kafka_coord.coordinator.assignors.kept_partitions import components, kept_shares
from kafka_coord.coordinator.assignors.load_balancing import balance_loads
from kafka_coord.coordinator.assignors.quotas import fill_quotas, proportional_quotas


class StickyAssignor:
    """Gives members with the same subscription equal numbers of partitions, to within one, with only the necessary
    moves.

    If subscriptions differ, the result is balanced in the sense of Kafka's sticky assignor: no single move would
    improve it.
    """

    def assign(self, inputs: AssignmentInputs) -> Target:
        return assign_by_capacity(inputs, dict.fromkeys(inputs.members, 1))


def assign_by_capacity(inputs: AssignmentInputs, capacities: Mapping[str, int]) -> Target:
    """Returns a sticky target in which each member's share is in proportion to its capacity."""
    shares, pool = kept_shares(inputs)
    for members, topics in components(inputs):
        part = [shares[consumer] for consumer in members]
        weights = {consumer: capacities[consumer] for consumer in members}
        if all(len(inputs.subscriptions[consumer]) == len(topics) for consumer in members):
            partitions = sum(len(inputs.topics[topic].partitions) for topic in topics)
            fill_quotas(part, topics, proportional_quotas(weights, partitions), pool, inputs)
        else:
            balance_loads(part, topics, weights, pool, inputs)
    return Target({consumer: share.as_set() for consumer, share in shares.items()})


class WeightedAssignor:
    """Gives a member with capacity 3 three times as many partitions as a member with capacity 1, as nearly as whole
    partitions allow.

    Members with the same subscription get their shares by the largest remainder method. If subscriptions differ,
    partitions move until no single move would improve the balance.
    """

    def assign(self, inputs: AssignmentInputs) -> Target:
        return assign_by_capacity(inputs, {name: member.capacity for name, member in inputs.members.items()})
