"""Assignors decide which member should own which partition. They are pure functions from members, topics and current
owners to a target."""

from kafka_coord.coordinator.assignors.base import AssignmentInputs, Assignor, Target
from kafka_coord.coordinator.assignors.loading import built_in_assignors, load_assignors

__all__ = ["AssignmentInputs", "Assignor", "Target", "built_in_assignors", "load_assignors"]
