"""A group's state in one word, and a summary, from the coordinator's own planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from kafka_coord.coordinator.assignors import AssignmentInputs, Assignor, Target, load_assignors
from kafka_coord.coordinator.plan import plan
from kafka_coord.coordinator.steps import GroupState, SetTarget
from kafka_coord.model import Observation


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """``state`` in operators' terms; ``summary`` is the decision that a coordinator would make now, and why."""

    state: GroupState
    summary: str


def group_status(seen: Observation) -> GroupStatus:
    """Runs the planner and discards its steps, so that no second set of rules can disagree with it.

    A group whose inputs changed since its target (a member joined a moment ago) is rebalancing, even if the new
    target moves nothing.
    """
    decided = plan(seen, _assignors(seen))
    state = decided.state
    if state is GroupState.STABLE and any(isinstance(step, SetTarget) for step in decided.steps):
        state = GroupState.REBALANCING
    return GroupStatus(state, decided.summary)


def group_state(seen: Observation) -> GroupState:
    """The state alone."""
    return group_status(seen).state


@cache
def _installed() -> Mapping[str, Assignor]:
    return load_assignors()


def _assignors(seen: Observation) -> Mapping[str, Assignor]:
    """The installed assignors. A stand-in for one that only the coordinator has allows to judge its target."""
    named = {seen.settings.assignor, *(member.assignor for member in seen.members.values())}
    if seen.assignment is not None:
        named.add(seen.assignment.assignor)
    elsewhere = {name: _InstalledElsewhere() for name in named if name and name not in _installed()}
    return {**_installed(), **elsewhere} if elsewhere else _installed()


class _InstalledElsewhere:
    """Stands in for an assignor that this program does not have."""

    def assign(self, inputs: AssignmentInputs) -> Target:
        raise NotImplementedError(f"cannot assign {len(inputs.members)} members: this assignor is not installed here")
