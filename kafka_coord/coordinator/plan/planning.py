"""``plan`` turns one snapshot of a group into one decision (docs/design.md, section 5), with the state of the group and
a summary in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafka_coord.coordinator.assignors import Assignor
from kafka_coord.coordinator.plan.departures import Evictions, cut_down, decide_evictions, forget
from kafka_coord.coordinator.plan.member_update import member_updates
from kafka_coord.coordinator.plan.membership import (
    GroupMembership,
    held_before,
    holds_are_unreadable,
    membership_of,
    outstanding,
    unreadable_commands,
    unreadable_offsets,
)
from kafka_coord.coordinator.plan.operator_requests import group_removal, offset_steps, other_answers
from kafka_coord.coordinator.plan.reasons import counted, cut, first_of, names, partitions_text, per_consumer
from kafka_coord.coordinator.plan.reconcile import Reconciliation, reconcile
from kafka_coord.coordinator.plan.target import TargetDecision, decide_target
from kafka_coord.coordinator.steps import DeleteOffsets, GroupState, Plan, Step, WriteHolds, WriteOffsets
from kafka_coord.coordinator.tolerant_reads import what_to_do
from kafka_coord.model import CommandType, Hold, Ledger, Observation, PartitionSet
from kafka_coord.zk import layout


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
    unreadable, held = membership.held_by_unreadable(observation), held_before(observation)
    holders = [*(update.ledger for update in updates.values()), *in_grace, *unreadable]
    offsets = offset_steps(observation, membership, holders)
    reconciled = reconcile(
        observation,
        membership,
        updates,
        [*in_grace, *unreadable, *held],
        target,
        moving=decided.moving,
        evicted=frozenset(evictions.reasons),
        starting=not any(isinstance(step, WriteOffsets | DeleteOffsets) for step in offsets)
        and not holds_are_unreadable(observation),
        decides_streams=target is not None and getattr(assignors.get(target.assignor), "decides_streams", False),
    )
    forgotten, forget_steps = forget(observation, membership, evictions)
    steps: list[Step] = [
        *_holds(observation, held),
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


def _holds(observation: Observation, held: Sequence[Ledger]) -> list[Step]:
    """Returns the step that ends the holds that are over, before anything that they kept from being started."""
    holds = observation.holds
    if holds is None or len(held) == len(holds.consumers) > 0:
        return []
    return [WriteHolds(holds, {one.consumer: Hold(one.owned, one.process) for one in held})]


def state_of(
    observation: Observation,
    membership: GroupMembership,
    evictions: Evictions,
    decided: TargetDecision,
    reconciled: Reconciliation,
) -> GroupState:
    """Returns the state of the group once the plan's steps are written."""
    if observation.pause is not None:
        return GroupState.PAUSED
    if not membership.effective and not membership.any_registration_unreadable:
        return GroupState.EMPTY
    if decided.target is None or evictions.reasons or membership.ledger_unreadable or not reconciled.in_line:
        return GroupState.REBALANCING
    return GroupState.STABLE


def summary_of(
    observation: Observation,
    membership: GroupMembership,
    evictions: Evictions,
    decided: TargetDecision,
    reconciled: Reconciliation,
    forgotten: Mapping[str, PartitionSet],
    state: GroupState,
) -> str:
    """Returns one line that states the decision and its reason, what the group is waiting for, and any problem that
    needs an operator's attention."""
    parts = [decided.summary]
    if observation.pause is not None:
        parts.append(_paused(observation))
    evicted = [f"evicts {consumer}: {reason}" for consumer, reason in sorted(evictions.reasons.items())]
    parts += first_of(evicted, 3, "evictions")
    released = {consumer: held for consumer, held in forgotten.items() if held}
    if released:
        shown = ", ".join(f"{partitions_text(released[c])} of {c}" for c in sorted(released)[:3])
        more = f" and of {len(released) - 3} more" if len(released) > 3 else ""
        parts.append(f"released from consumers that are gone: {shown}{more}")
    deaf = unreadable_commands(observation)
    stopping = {c: stop for c, stop in (reconciled.stopping | reconciled.told_to_stop).items() if c not in deaf}
    unnamed = [consumer for consumer, partitions in stopping.items() if not partitions]
    odd = [
        f"waiting for {consumer} to acknowledge {_stops(observation, consumer)}, "
        "although its ledger has no stopping partitions"
        for consumer in unnamed
    ]
    parts += first_of(odd, 3, "such consumers")
    stopping = {consumer: partitions for consumer, partitions in stopping.items() if partitions}
    if stopping:
        parts.append(f"waiting for {per_consumer('stop', stopping)}")
    if reconciled.told_to_start:
        parts.append(f"told {per_consumer('start', reconciled.told_to_start)}")
    before = {one.consumer: one.owned for one in held_before(observation)}
    if before and membership.live:
        parts.append(f"waiting for what was held before the restore: {per_consumer('keep', before)}")
    starting = {c: owned for c, owned in reconciled.starting.items() if c not in deaf}
    if starting:
        parts.append(f"waiting for {per_consumer('start all of', starting)}")
    if not any(parts):
        parts.append(_at_rest(observation, membership, decided, state))
    return "; ".join(filter(None, [*parts, *_warnings(observation, membership, decided, reconciled)]))


def _stops(observation: Observation, consumer: str) -> str:
    commands = outstanding(observation, consumer).commands
    return names([one.name for one in commands if one.type is CommandType.STOP_FETCHER], 3) or "a stop-fetcher"


def _paused(observation: Observation) -> str:
    pause = observation.pause
    if pause is None:
        return ""
    by = f" by {pause.by}" if pause.by else ""
    why = f" ({pause.reason[:100]})" if pause.reason else ""
    return f"paused{by}{why}: nothing is moved, started or evicted"


def _at_rest(observation: Observation, membership: GroupMembership, decided: TargetDecision, state: GroupState) -> str:
    target = decided.target
    if state is GroupState.EMPTY:
        return "no members"
    if target is None:
        return "no target"
    partitions = sum(map(len, target.members.values()))
    members, owned = len(target.members), ""
    if state is not GroupState.STABLE:
        members = len(membership.live)
        owned = f"{sum(len(observation.ledgers[c].owned) for c in membership.live if c in observation.ledgers)} of "
    verb = "owns" if members == 1 else "own"
    said = f"{counted(members, 'member')} {verb} {owned}{counted(partitions, 'partition')}"
    return f"no change: {said}, generation {target.generation}"


def _warnings(
    observation: Observation, membership: GroupMembership, decided: TargetDecision, reconciled: Reconciliation
) -> list[str]:
    warnings = []
    if membership.in_grace:
        warnings.append(f"keeping the place of {names(membership.in_grace)}")
    if membership.ledger_unreadable:
        who = names(membership.ledger_unreadable)
        withheld = f", and {partitions_text(reconciled.withheld)} cannot be started" if reconciled.withheld else ""
        warnings.append(f"the ledger of {who} cannot be read, so its partitions are unknown{withheld}; evict it")
    if reconciled.blocked:
        first = unreadable_offsets(observation)[0]
        why = f"{first.path} is unreadable ({cut(first.reason, 100)}); {what_to_do(first.path)}"
        warnings.append(f"cannot start {partitions_text(reconciled.blocked)}: {why}")
    if membership.registration_unreadable:
        who = names(membership.registration_unreadable)
        warnings.append(f"the registration of {who} cannot be read, so its partitions stay held; evict it")
    if holds_are_unreadable(observation):
        path = layout.held(observation.group)
        warnings.append(f"what was held before the restore is unknown, so nothing is started; {what_to_do(path)}")
    deaf = [
        f"{consumer} cannot read its command {name}, so it has stopped carrying out commands; evict it"
        for consumer, name in sorted(unreadable_commands(observation).items())
    ]
    warnings += first_of(deaf, 3, "consumers cannot read a command")
    warnings += decided.complaints + first_of(
        reconciled.complaints, 3, "members have too large a ledger or registration"
    )
    strays = [consumer for consumer, channel in observation.channels.items() if channel.strays]
    if strays:
        warnings.append(f"ignoring znodes in the channel of {names(strays)} that are not commands")
    prefix = layout.group(observation.group) + "/"
    explained = {unreadable_offsets(observation)[0]} if reconciled.blocked else set()
    shown = [one.path.removeprefix(prefix) for one in observation.unreadable if one not in explained]
    if shown:
        warnings.append(f"cannot read {names(shown, 3)}")
    return warnings
