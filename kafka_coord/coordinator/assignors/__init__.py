"""Assignors decide which member should own which partition. All are pure: (members, topics, current owners) →
target."""

from kafka_coord.coordinator.assignors.base import AssignmentInputs, Assignor, Target
from kafka_coord.coordinator.assignors.loading import built_in_assignors, load_assignors

__all__ = ["AssignmentInputs", "Assignor", "Target", "built_in_assignors", "load_assignors"]
