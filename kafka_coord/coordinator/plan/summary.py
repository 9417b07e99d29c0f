"""The state of a group in one word and the decision in one sentence."""

from __future__ import annotations

from collections.abc import Mapping

from kafka_coord.coordinator.plan.answers import Evictions
from kafka_coord.coordinator.plan.membership import Standing, unreadable_offsets
from kafka_coord.coordinator.plan.reasons import counted, cut, names, partitions_text, per_consumer
from kafka_coord.coordinator.plan.reconcile import Moves
from kafka_coord.coordinator.plan.target_decision import Decided
from kafka_coord.coordinator.remediation import what_to_do
from kafka_coord.coordinator.steps import GroupState
from kafka_coord.model import Observation, PartitionSet
from kafka_coord.zk import layout


def state_of(
    observation: Observation, standing: Standing, thrown_out: Evictions, decided: Decided, moves: Moves
) -> GroupState:
    """The state once the plan's steps are written."""
    if observation.pause is not None:
        return GroupState.PAUSED
    if not standing.effective and not standing.unreadable_members:
        return GroupState.EMPTY
    if decided.target is None or thrown_out.reasons or standing.opaque or not moves.in_line:
        return GroupState.REBALANCING
    return GroupState.STABLE


def sentence_of(
    observation: Observation,
    standing: Standing,
    thrown_out: Evictions,
    decided: Decided,
    moves: Moves,
    forgotten: Mapping[str, PartitionSet],
    state: GroupState,
) -> str:
    """What was decided and why; what is waited for; what somebody should look at."""
    parts = [decided.sentence]
    if observation.pause is not None:
        parts.append(_paused(observation))
    parts += [f"evicts {consumer}: {reason}" for consumer, reason in sorted(thrown_out.reasons.items())[:3]]
    released = {consumer: held for consumer, held in forgotten.items() if held}
    if released:
        shown = ", ".join(f"{partitions_text(released[c])} of {c}" for c in sorted(released)[:3])
        more = f" and of {len(released) - 3} more" if len(released) > 3 else ""
        parts.append(f"released {shown}{more}, gone")
    if moves.told_to_stop:
        parts.append(f"waiting for {per_consumer('stop', {**moves.stopping, **moves.told_to_stop})}")
    elif moves.stopping:
        parts.append(f"waiting for {per_consumer('stop', moves.stopping)}")
    if moves.told_to_start:
        parts.append(f"told {per_consumer('start', moves.told_to_start)}")
    if moves.starting:
        parts.append(f"waiting for {names(moves.starting)} to start")
    if not any(parts):
        parts.append(_at_rest(observation, standing, decided, state))
    return "; ".join(filter(None, [*parts, *_warnings(observation, standing, decided, moves)]))


def _paused(observation: Observation) -> str:
    pause = observation.pause
    if pause is None:
        return ""
    by = f" by {pause.by}" if pause.by else ""
    why = f" ({pause.reason[:100]})" if pause.reason else ""
    return f"paused{by}{why}: nothing is moved, started or evicted"


def _at_rest(observation: Observation, standing: Standing, decided: Decided, state: GroupState) -> str:
    target = decided.target
    if state is GroupState.EMPTY:
        return "no members"
    if target is None:
        return "no target"
    partitions = sum(map(len, target.members.values()))
    members, owned = len(target.members), ""
    if state is not GroupState.STABLE:
        members = len(standing.live)
        owned = f"{sum(len(observation.ledgers[c].owned) for c in standing.live if c in observation.ledgers)} of "
    verb = "owns" if members == 1 else "own"
    said = f"{counted(members, 'member')} {verb} {owned}{counted(partitions, 'partition')}"
    return f"no change: {said}, generation {target.generation}"


def _warnings(observation: Observation, standing: Standing, decided: Decided, moves: Moves) -> list[str]:
    found = []
    if standing.kept:
        found.append(f"keeps the place of {names(standing.kept)}")
    if standing.opaque:
        withheld = f", and {partitions_text(moves.withheld)} cannot be started" if moves.withheld else ""
        found.append(
            f"the ledger of {names(standing.opaque)} cannot be read, so what it holds is not known{withheld}: evict it"
        )
    if moves.blocked:
        first = unreadable_offsets(observation)[0]
        found.append(
            f"cannot start {partitions_text(moves.blocked)}: {first.path} is unreadable ({cut(first.reason, 100)});"
            f" {what_to_do(first.path)}"
        )
    if standing.muted:
        found.append(f"the registration of {names(standing.muted)} cannot be read: what it holds stays held; evict it")
    found += decided.complaints + moves.complaints[:3]
    strays = [consumer for consumer, channel in observation.channels.items() if channel.strays]
    if strays:
        found.append(f"left alone what is no command in the channel of {names(strays)}")
    prefix = layout.group(observation.group) + "/"
    if observation.unreadable:
        shown = [f.path.removeprefix(prefix) for f in observation.unreadable]
        found.append(f"cannot read {names(shown, 3)}")
    return found
