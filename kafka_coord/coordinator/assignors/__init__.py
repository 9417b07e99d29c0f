"""Assignors decide which member should own which partition. They are pure functions from members, topics and current
owners to a target. This module finds them: the built-in ones, and the plug-ins that installed packages provide as entry
points."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points

from kafka_coord.coordinator.assignors.base import AssignmentInputs, Assignor, Target
from kafka_coord.coordinator.assignors.built_in import (
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    WeightedAssignor,
)

__all__ = ["AssignmentInputs", "Assignor", "Target", "built_in_assignors", "load_assignors"]

ENTRY_POINTS = "kafka_coord.assignors"

_log = logging.getLogger(__name__)


def built_in_assignors() -> dict[str, Assignor]:
    """Returns the assignors that are always available."""
    return {
        "range": RangeAssignor(),
        "roundrobin": RoundRobinAssignor(),
        "sticky": StickyAssignor(),
        "weighted": WeightedAssignor(),
    }


def load_assignors() -> dict[str, Assignor]:
    """Returns the assignors by name. Logs and skips plug-ins that cannot be loaded. A plug-in cannot replace a built-in
    assignor."""
    assignors = built_in_assignors()
    for entry_point in entry_points(group=ENTRY_POINTS):
        if entry_point.name in assignors:
            if entry_point.module.partition(".")[0] != __name__.partition(".")[0]:
                _log.warning("ignored assignor name=%s from=%s: the name is taken", entry_point.name, entry_point.value)
            continue
        try:
            assignor = entry_point.load()()
        except Exception as error:  # noqa: BLE001  a plug-in may fail in any way; the others must still load
            _log.warning("skipped assignor name=%s from=%s: %r", entry_point.name, entry_point.value, error)
            continue
        if not isinstance(assignor, Assignor):
            _log.warning("skipped assignor name=%s from=%s: it has no assign()", entry_point.name, entry_point.value)
            continue
        assignors[entry_point.name] = assignor
    return assignors
