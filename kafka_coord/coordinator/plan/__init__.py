"""The decision: a frozen snapshot of a group in, steps and a summary out. Nothing here does I/O."""

from kafka_coord.coordinator.plan.planning import plan

__all__ = ["plan"]
