"""Turns a frozen snapshot of a group into a decision: steps and a summary. Nothing here does I/O."""

from kafka_coord.coordinator.plan.planning import plan

__all__ = ["plan"]
