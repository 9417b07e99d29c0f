"""``plan``: one look at a group in, one decision out (docs/design.md, section 5, "plan, in order")."""

from __future__ import annotations

from collections.abc import Mapping

from kafka_coord.coordinator.assignors import Assignor
from kafka_coord.coordinator.plan.answers import (
    Evictions,
    evictions,
    expiry_steps,
    offset_steps,
    other_answers,
    removal_steps,
)
from kafka_coord.coordinator.plan.cleanup import cut_down, forget
from kafka_coord.coordinator.plan.member_update import live_drafts
from kafka_coord.coordinator.plan.membership import Standing, standing_of
from kafka_coord.coordinator.plan.reconcile import move
from kafka_coord.coordinator.plan.summary import sentence_of, state_of
from kafka_coord.coordinator.plan.target_decision import Decided, decide_target
from kafka_coord.coordinator.steps import DeleteOffsets, GroupState, Plan, RemoveGroup, Step, WriteOffsets
from kafka_coord.model import Observation


def plan(observation: Observation, assignors: Mapping[str, Assignor]) -> Plan:
    """What to write about one group now, and one sentence saying why.

    Pure and level-triggered: the same look gives the same plan, and a plan of which only the first steps were written
    leaves a state from which the next one goes on. ``assignors`` must hold the default one (``sticky``).

    Steps come in this order: consumers that are gone are forgotten; evictions; the new target; the ledgers of
    consumers in grace are cut down to it; offsets; then one write for each live member, those that only release or
    stop first, and every start after the release it needs. What is started begins at the offsets found before any of
    this is written, so nothing is started by a plan that sets offsets for an operator.
    """
    standing = standing_of(observation)
    removal = removal_steps(observation, standing)
    if removal is not None:
        return _removed(observation, "an operator asked", removal)
    removal = expiry_steps(observation, standing)
    if removal is not None:
        return _removed(observation, "empty for longer than its offsets are kept", removal)
    thrown_out = evictions(observation, standing)
    decided = decide_target(observation, standing, thrown_out, assignors)
    return _write(observation, standing, thrown_out, decided, assignors)


def _removed(observation: Observation, why: str, answers: list[Step]) -> Plan:
    return Plan(observation.group, GroupState.DEAD, f"group removed: {why}", (RemoveGroup(), *answers))


def _write(
    observation: Observation,
    standing: Standing,
    thrown_out: Evictions,
    decided: Decided,
    assignors: Mapping[str, Assignor],
) -> Plan:
    target = decided.target
    drafts = live_drafts(observation, standing)
    kept, kept_steps = cut_down(observation, standing, thrown_out, target)
    muted = [observation.ledgers[consumer] for consumer in standing.muted if consumer in observation.ledgers]
    holders = [*(draft.ledger for draft in drafts.values()), *kept, *muted]
    offsets = offset_steps(observation, standing, holders)
    moves = move(
        observation,
        standing,
        drafts,
        [*kept, *muted],
        target,
        moving=decided.moving,
        evicted=frozenset(thrown_out.reasons),
        starting=not any(isinstance(step, WriteOffsets | DeleteOffsets) for step in offsets),
        decides_streams=target is not None and getattr(assignors.get(target.assignor), "decides_streams", False),
    )
    forgotten, forget_steps = forget(observation, standing, thrown_out)
    steps: list[Step] = [
        *forget_steps,
        *thrown_out.steps(drafts, observation, standing),
        *decided.steps,
        *kept_steps,
        *offsets,
        *moves.steps,
        *other_answers(observation, standing),
    ]
    state = state_of(observation, standing, thrown_out, decided, moves)
    sentence = sentence_of(observation, standing, thrown_out, decided, moves, forgotten, state)
    return Plan(observation.group, state, sentence, tuple(steps), moves.blocked)
