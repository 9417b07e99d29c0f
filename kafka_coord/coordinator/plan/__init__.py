"""The decision: one frozen look at a group in, steps and a sentence out. Nothing here talks to anything."""

from kafka_coord.coordinator.plan.planning import plan

__all__ = ["plan"]
