"""``plan`` turns one snapshot of a group into one decision (docs/design.md, section 5)."""

from __future__ import annotations

from collections.abc import Mapping

from kafka_coord.coordinator.assignors import Assignor
from kafka_coord.coordinator.plan.acknowledged_stops import member_updates
from kafka_coord.coordinator.plan.departures import cut_down, forget
from kafka_coord.coordinator.plan.evictions import Evictions, decide_evictions
from kafka_coord.coordinator.plan.group_removal import group_removal
from kafka_coord.coordinator.plan.membership import GroupMembership, membership_of
from kafka_coord.coordinator.plan.operator_requests import offset_steps, other_answers
from kafka_coord.coordinator.plan.reconcile import reconcile
from kafka_coord.coordinator.plan.summary import state_of, summary_of
from kafka_coord.coordinator.plan.target_decision import TargetDecision, decide_target
from kafka_coord.coordinator.steps import DeleteOffsets, Plan, Step, WriteOffsets
from kafka_coord.model import Observation


def plan(observation: Observation, assignors: Mapping[str, Assignor]) -> Plan:
    """Returns the writes for one group, and a summary with the reasons.

    The function is pure and level-triggered, so the same snapshot gives the same plan. If only the first steps of a
    plan are written, the next plan continues from there. ``assignors`` must include ``sticky``, the default.

    The steps clean up after consumers that are gone, evict consumers, set the new target, reduce the ledgers of
    consumers in grace to that target, write offsets, and then update each live member with one write. The updates that
    only release or stop partitions come first, and every start follows the release that it needs. Start offsets are
    read before any step is written, so a plan that sets offsets for an operator does not start any partitions.
    """
    membership = membership_of(observation)
    removal = group_removal(observation, membership)
    if removal is not None:
        return removal
    evictions = decide_evictions(observation, membership)
    decided = decide_target(observation, membership, evictions, assignors)
    return _assembled(observation, membership, evictions, decided, assignors)


def _assembled(
    observation: Observation,
    membership: GroupMembership,
    evictions: Evictions,
    decided: TargetDecision,
    assignors: Mapping[str, Assignor],
) -> Plan:
    target = decided.target
    updates = member_updates(observation, membership)
    in_grace, grace_steps = cut_down(observation, membership, evictions, target)
    unreadable = membership.held_by_unreadable(observation)
    holders = [*(update.ledger for update in updates.values()), *in_grace, *unreadable]
    offsets = offset_steps(observation, membership, holders)
    reconciled = reconcile(
        observation,
        membership,
        updates,
        [*in_grace, *unreadable],
        target,
        moving=decided.moving,
        evicted=frozenset(evictions.reasons),
        starting=not any(isinstance(step, WriteOffsets | DeleteOffsets) for step in offsets),
        decides_streams=target is not None and getattr(assignors.get(target.assignor), "decides_streams", False),
    )
    forgotten, forget_steps = forget(observation, membership, evictions)
    steps: list[Step] = [
        *forget_steps,
        *evictions.steps(updates, observation, membership),
        *decided.steps,
        *grace_steps,
        *offsets,
        *reconciled.steps,
        *other_answers(observation, membership),
    ]
    state = state_of(observation, membership, evictions, decided, reconciled)
    summary = summary_of(observation, membership, evictions, decided, reconciled, forgotten, state)
    return Plan(observation.group, state, summary, tuple(steps), reconciled.blocked)
