"""The last decisions of a group, kept readable in ZooKeeper: generation, what moved, why, how long each step took."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kafka_coord.coordinator.steps import AT_REST, GroupState, Plan, SetTarget, WriteLedger
from kafka_coord.errors import MalformedValue, NoNode
from kafka_coord.model import (
    NO_PARTITIONS,
    Decision,
    Observation,
    PartitionSet,
    StartFetcher,
    StopFetcher,
    history_from_json,
    history_to_json,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.model.operations import MAX_HISTORY
from kafka_coord.zk import layout
from kafka_coord.zk.store import Clock, Create, Node, Op, SetData, Store

log = logging.getLogger(__name__)

MAX_MOVES = 20
MAX_MOVE_TEXT = 200
MAX_HISTORY_BYTES = 200_000
MAX_REMEMBERED = 32
"""Groups; of each up to ``MAX_HISTORY_BYTES``."""


def describe(plan: Plan, observation: Observation, decided_at_ms: int) -> Decision | None:
    """The decision a plan takes, ``None`` where it sets no new target."""
    step = next((step for step in plan.steps if isinstance(step, SetTarget)), None)
    if step is None:
        return None
    target = step.assignment
    before = {c: ledger.owned for c, ledger in observation.ledgers.items()}
    held = PartitionSet.union(before.values())
    moves: dict[str, Mapping[str, str]] = {}
    moved = 0
    for consumer in sorted(before.keys() | target.members.keys()):
        had, gets = before.get(consumer, NO_PARTITIONS), target.members.get(consumer, NO_PARTITIONS)
        lost, gained = had - gets, gets - had
        moved += len(gained & held)
        if lost or gained:
            moves[consumer] = {
                name: str(found)[:MAX_MOVE_TEXT] for name, found in (("gained", gained), ("lost", lost)) if found
            }
    return Decision(
        generation=target.generation,
        epoch=target.epoch,
        reason=target.reason,
        assignor=target.assignor,
        decided_at_ms=decided_at_ms,
        members=len(target.members),
        partitions=sum(map(len, target.members.values())),
        moved=moved,
        moves=dict(list(moves.items())[:MAX_MOVES]),
        causes=step.causes,
    )


@dataclass(slots=True)
class _Progress:
    """A decision on its way to being settled. ``decided`` is monotonic seconds; ``settling``: it was handed out to be
    written as settled."""

    decision: Decision
    decided: float
    settling: bool = False


class _Encoded(NamedTuple):
    """A decision as it is written; what is in a history already is not encoded again for the next one."""

    generation: int
    data: bytes

    @classmethod
    def of(cls, decision: Decision) -> _Encoded:
        return cls(decision.generation, fields.dump(decision.to_json()))


_ENVELOPE = fields.dump(history_to_json(())).replace(b"[]", b"[%b]")
"""The znode's value around its decisions."""


class DecisionLog:
    """Follows each group's newest decision until it is settled. One thread.

    What it wrote last of a few groups is remembered with its version, and so not read again for the next decision:
    written by anybody else, it fails, is doubted (:meth:`invalidate`) and read.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._clock: Clock = store.clock
        self._open: dict[str, _Progress] = {}
        self._written: OrderedDict[str, tuple[Sequence[_Encoded], int]] = OrderedDict()

    def observe(self, plan: Plan, observation: Observation) -> tuple[Op, ...]:
        """The history writes that belong to this pass: one when a target is decided, one when it is settled."""
        group, now = plan.group, self._clock.monotonic()
        decision = describe(plan, observation, int(self._clock.time() * 1000))
        if decision is not None:
            decision = self._count(decision, plan)
            if plan.state in AT_REST:  # nothing has to move, so what is written now settles it
                self._open.pop(group, None)
                return self._write(group, replace(decision, settled_ms=0))
            self._open[group] = _Progress(decision, now)
            return self._write(group, decision)
        if plan.state is GroupState.DEAD:
            self._open.pop(group, None)
            return ()
        progress = self._open.get(group)
        if progress is not None and progress.settling:  # and nobody doubted that
            del self._open[group]
            progress = None
        progress = progress or self._resume(plan, observation, now)
        if progress is None:
            return ()
        elapsed_ms = round((now - progress.decided) * 1000)
        updated = self._count(progress.decision, plan)
        if updated.stopped_ms is None and updated.stopped and not any(x.stopping for x in observation.ledgers.values()):
            updated = replace(updated, stopped_ms=elapsed_ms)
        progress.decision = updated
        if plan.steps or plan.state not in AT_REST:
            return ()
        progress.settling = True
        return self._write(group, replace(updated, settled_ms=elapsed_ms))

    def knows(self, group: str) -> bool:
        """Whether the next decision of the group can be written without reading the znode."""
        return group in self._written

    def remember(self, group: str, node: Node) -> None:
        """Somebody has read the znode meanwhile."""
        path = layout.history(group)
        try:
            decisions = history_from_json(fields.load(node.data, path), path)
        except MalformedValue:
            return  # it is read again when it is written, and reported
        self._keep(group, [_Encoded.of(one) for one in decisions], node.stat.version)

    def forget(self, group: str) -> None:
        self._open.pop(group, None)
        self._written.pop(group, None)

    def invalidate(self, group: str) -> None:
        """What was handed out for this group may not have been written."""
        self._written.pop(group, None)
        progress = self._open.get(group)
        if progress is not None:
            progress.settling = False

    @staticmethod
    def _count(decision: Decision, plan: Plan) -> Decision:
        stopped = started = 0
        for step in plan.steps:
            for command in step.commands if isinstance(step, WriteLedger) else ():
                count = len(command.partitions)
                stopped += count if isinstance(command, StopFetcher) else 0
                started += count if isinstance(command, StartFetcher) else 0
        return replace(decision, stopped=decision.stopped + stopped, started=decision.started + started)

    def _resume(self, plan: Plan, observation: Observation, now: float) -> _Progress | None:
        """Takes up what an earlier coordinator decided and did not see settled; its clock is the wall clock then."""
        target = observation.assignment
        if plan.state is not GroupState.REBALANCING or target is None or not target.timestamp_ms:
            return None
        last = next((d for d in reversed(self._read(plan.group)[0]) if d.generation == target.generation), None)
        if last is None or last.settled_ms is not None:
            return None
        age_s = max(0.0, self._clock.time() - last.decided_at_ms / 1000)
        self._open[plan.group] = _Progress(last, now - age_s)
        return self._open[plan.group]

    def _read(self, group: str) -> tuple[tuple[Decision, ...], Node | None]:
        path = layout.history(group)
        try:
            node = self._store.get(path)
            return history_from_json(fields.load(node.data, path), path), node
        except NoNode:
            return (), None
        except MalformedValue as error:
            log.warning("replacing unreadable history group=%s reason=%s", group, error)
            return (), self._store.get(path)

    def _write(self, group: str, decision: Decision) -> tuple[Op, ...]:
        known, version = self._known(group)
        kept = [one for one in known if one.generation != decision.generation][1 - MAX_HISTORY :]
        kept.append(_Encoded.of(decision))
        while sum(len(one.data) for one in kept) > MAX_HISTORY_BYTES and len(kept) > 1:
            kept = kept[len(kept) // 2 :]
        self._keep(group, kept, version + 1)
        data = _ENVELOPE % b",".join(one.data for one in kept)
        path = layout.history(group)
        return (Create(path, data),) if version < 0 else (SetData(path, data, version),)

    def _keep(self, group: str, decisions: Sequence[_Encoded], version: int) -> None:
        self._written[group] = decisions, version
        while len(self._written) > MAX_REMEMBERED:
            self._written.popitem(last=False)

    def _known(self, group: str) -> tuple[Sequence[_Encoded], int]:
        """(what the znode holds, its version, -1 for none)."""
        if group in self._written:
            return self._written.pop(group)
        decisions, node = self._read(group)
        return [_Encoded.of(one) for one in decisions], -1 if node is None else node.stat.version
