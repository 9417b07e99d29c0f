"""``weighted`` distributes partitions in proportion to the members' capacities. Otherwise, it works like ``sticky``."""

from __future__ import annotations

from kafka_coord.coordinator.assignors.base import AssignmentInputs, Target
from kafka_coord.coordinator.assignors.sticky import assign_by_capacity


class WeightedAssignor:
    """Gives a member with capacity 3 three times as many partitions as a member with capacity 1, as nearly as whole
    partitions allow.

    Members with the same subscription get their shares by the largest remainder method. If subscriptions differ,
    partitions move until no single move would improve the balance.
    """

    def assign(self, inputs: AssignmentInputs) -> Target:
        return assign_by_capacity(inputs, {name: member.capacity for name, member in inputs.members.items()})
