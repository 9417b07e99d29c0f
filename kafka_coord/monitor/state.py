"""Runs the coordinator's planner to determine and summarise a group's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from kafka_coord.coordinator.assignors import AssignmentInputs, Assignor, Target, load_assignors
from kafka_coord.coordinator.plan import plan
from kafka_coord.coordinator.steps import GroupState, SetTarget
from kafka_coord.model import Observation
from kafka_coord.zk import layout


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A group's state. ``summary`` says what a coordinator would decide now, and why."""

    state: GroupState
    summary: str


def group_status(seen: Observation) -> GroupStatus:
    """Returns the group's state and summary. Runs the planner and discards its steps, so the state always agrees with
    the coordinator's rules.

    If a group's inputs have changed since its target was written (for example, because a member has just joined), the
    group counts as rebalancing, even if the new target will not move anything.
    """
    hidden = next((one for one in seen.unreadable if one.path in _listings(seen.group)), None)
    if hidden is not None:  # the coordinator's pass over the group fails at this znode
        return GroupStatus(
            GroupState.REBALANCING, f"cannot decide, because {hidden.path} is unreadable: {hidden.reason}"
        )
    decided = plan(seen, _assignors(seen))
    state = decided.state
    if state is GroupState.STABLE and any(isinstance(step, SetTarget) for step in decided.steps):
        state = GroupState.REBALANCING
    return GroupStatus(state, decided.summary)


def _listings(group: str) -> tuple[str, ...]:
    return layout.ids(group), layout.owners(group), layout.channels(group)


def group_state(seen: Observation) -> GroupState:
    return group_status(seen).state


@cache
def _installed() -> Mapping[str, Assignor]:
    return load_assignors()


def _assignors(seen: Observation) -> Mapping[str, Assignor]:
    """Returns the installed assignors, and placeholders for those that are installed only on the coordinator's host.
    With a placeholder, the planner can still judge an existing target."""
    named = {seen.settings.assignor, *(member.assignor for member in seen.members.values())}
    if seen.assignment is not None:
        named.add(seen.assignment.assignor)
    elsewhere = {name: _InstalledElsewhere() for name in named if name and name not in _installed()}
    return {**_installed(), **elsewhere} if elsewhere else _installed()


class _InstalledElsewhere:
    """A placeholder for an assignor that is not installed here."""

    def assign(self, inputs: AssignmentInputs) -> Target:
        raise NotImplementedError(f"cannot assign {len(inputs.members)} members without this assignor")
