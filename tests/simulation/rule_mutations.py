"""Deliberate defects of the coordinator. Each defect breaks one rule about ZooKeeper's contents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from msgspec import structs

from kafka_coord.coordinator import deadlines, decision_writer, image, start_offsets
from kafka_coord.coordinator.execute import Decided, Executor
from kafka_coord.coordinator.plan import operator_requests, plan, planning, reconcile
from kafka_coord.coordinator.plan.member_update import MemberUpdate
from kafka_coord.coordinator.steps import WriteLedgerAndCommands
from kafka_coord.model import NO_OFFSET, NO_PARTITIONS, PartitionSet, StartFetcher
from kafka_coord.zk import election
from kafka_coord.zk.store import Create, SetData

Patch = tuple[Any, str, Any]


def _eager_members_do_not_wait() -> Patch:
    return reconcile, "Mode", SimpleNamespace(EAGER=None)


def _everything_is_stopped() -> Patch:
    original = reconcile._decide_stop

    def decide_stop(update: Any, *args: Any) -> None:
        original(update, *args)
        if update.stop:
            update.stop = update.ledger.owned

    return reconcile, "_decide_stop", decide_stop


def _reset_while_held() -> Patch:
    return operator_requests, "_fault", lambda *_args, **_more: ""


def _old_offsets_of_a_new_topic() -> Patch:
    original = start_offsets._of_topic
    return start_offsets, "_of_topic", lambda *args, **more: replace(original(*args, **more), remove=(), stale=False)


def _pause_not_seen() -> Patch:
    return image, "_decode_pause", lambda _where, _node: None


def _split_unit() -> Patch:
    def write(self: Any, units: Any) -> list[tuple[object, ...]]:
        found = []
        for unit in units:
            commands = [number for number, op in enumerate(unit) if isinstance(op, Create) and "/channel/" in op.path]
            cut = commands[0] if commands else 0
            results = []
            for ops in filter(None, (unit[:cut], unit[cut:])):
                results += self._store.multi([self._fence, *ops])[1:]
            found.append(tuple(results))
        return found

    return Executor, "write", write


def _epoch_without_compare_and_set() -> Patch:
    return election, "SetData", lambda path, data, _version=-1: SetData(path, data)


def _evicted_and_released() -> Patch:
    original = MemberUpdate.eviction

    def eviction(self: Any) -> WriteLedgerAndCommands:
        step = original(self)
        return replace(step, ledger=structs.replace(step.ledger, owned=NO_PARTITIONS, stopping=NO_PARTITIONS))

    return MemberUpdate, "eviction", eviction


def _evicted_at_once() -> Patch:
    return deadlines, "_overdue", lambda seen, *_: frozenset(c for c, found in seen.channels.items() if found.commands)


def _no_grace() -> Patch:
    return deadlines, "_in_grace", lambda *_: frozenset()


def _places_hold_nothing() -> Patch:
    return planning, "cut_down", lambda *_: ([], [])


def _retention_of_a_live_group() -> Patch:
    return deadlines, "offsets_expire_at_ms", lambda inputs: None if inputs.registered else 0


def _unreadable_offset_taken_for_none() -> Patch:
    original = start_offsets._begin

    def begin(*args: Any, **more: Any) -> Any:
        found = original(*args, **more)
        return found if isinstance(found, int) else NO_OFFSET

    return start_offsets, "_begin", begin


def _steps_cut_from_a_plan() -> Patch:
    """A step whose starts are all unreadable is left out, together with the release in it."""

    def decide(store: Any, observation: Any, assignors: Any, _covered: Any) -> Decided:
        decided = plan(observation, assignors)
        start = start_offsets.read_start_offsets(
            store, observation.group, decided.started, observation.topics, observation.members
        )
        steps = [kept for step in decided.steps if (kept := _cut(step, PartitionSet.of(start.unreadable))) is not None]
        return Decided(replace(decided, steps=tuple(steps)), observation, start)

    return decision_writer, "decide", decide


def _cut(step: Any, unreadable: PartitionSet) -> Any:
    if not isinstance(step, WriteLedgerAndCommands) or not step.commands or not unreadable:
        return step
    commands = []
    for command in step.commands:
        if isinstance(command, StartFetcher):
            starts = {tp: point for tp, point in command.starts.items() if tp not in unreadable}
            if not starts:
                continue
            command = structs.replace(command, starts=starts)  # noqa: PLW2901
        commands.append(command)
    if not commands:
        return None
    return replace(
        step, ledger=structs.replace(step.ledger, owned=step.ledger.owned - unreadable), commands=tuple(commands)
    )


RULE_MUTATIONS: dict[str, Callable[[], Patch]] = {
    "an eager member starts before all have stopped": _eager_members_do_not_wait,
    "partitions that stay are stopped": _everything_is_stopped,
    "offsets reset while a partition is held": _reset_while_held,
    "a recreated topic starts at the old offsets": _old_offsets_of_a_new_topic,
    "members of a paused group receive commands": _pause_not_seen,
    "a ledger and its command written in two transactions": _split_unit,
    "an epoch written without compare-and-set": _epoch_without_compare_and_set,
    "an evicted member's partitions are released with the eviction": _evicted_and_released,
    "a member evicted before its rebalance timeout": _evicted_at_once,
    "no grace period": _no_grace,
    "partitions kept during a grace period are started elsewhere": _places_hold_nothing,
    "a group's offsets deleted before their retention": _retention_of_a_live_group,
    "an unreadable offset counts as no offset": _unreadable_offset_taken_for_none,
    "a step with an unreadable offset is left out of its plan": _steps_cut_from_a_plan,
}
