"""A group's last decisions in ZooKeeper: generation, cause, moved partitions, and the duration of each step."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from kafka_coord.coordinator.memory import EncodedDecision, GroupMemory, Progress, WrittenHistory
from kafka_coord.coordinator.steps import AT_REST, GroupState, Plan, SetTarget, WriteLedgerAndCommands
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
"""The most groups whose history stays encoded; each history takes up to ``MAX_HISTORY_BYTES``."""


def describe(plan: Plan, observation: Observation, decided_at_ms: int) -> Decision | None:
    """The decision in a plan; ``None`` if the plan sets no new target."""
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


_ENVELOPE = fields.dump(history_to_json(())).replace(b"[]", b"[%b]")
"""The znode's value without its decisions."""


class DecisionLog:
    """Follows each group's newest decision until it is settled. One thread.

    The last histories written are kept encoded, with their versions, so that the next decision of the same group is
    written without a read. If anybody else writes the znode, the next write fails; then the memory is invalidated and
    the znode is read.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._clock: Clock = store.clock
        self._encoded: deque[GroupMemory] = deque()
        """The groups whose history is kept, least recently written first."""

    def observe(self, memory: GroupMemory, plan: Plan, observation: Observation) -> tuple[Op, ...]:
        """The history writes of this pass: one when a target is decided, one when it is settled."""
        now = self._clock.monotonic()
        decision = describe(plan, observation, int(self._clock.time() * 1000))
        if decision is not None:
            decision = self._count(decision, plan)
            if plan.state in AT_REST:  # nothing has to move, so this write also settles it
                memory.progress = None
                return self._write(memory, replace(decision, settled_ms=0))
            memory.progress = Progress(decision, now)
            return self._write(memory, decision)
        if plan.state is GroupState.DEAD:
            memory.progress = None
            return ()
        if memory.progress is not None and memory.progress.settling:  # the settling write took effect
            memory.progress = None
        memory.progress = progress = memory.progress or self._resume(plan, observation, now)
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
        return self._write(memory, replace(updated, settled_ms=elapsed_ms))

    def remember(self, memory: GroupMemory, node: Node) -> None:
        """Remembers the znode's value, which another read has returned."""
        path = layout.history(memory.group)
        try:
            decisions = history_from_json(fields.load(node.data, path), path)
        except MalformedValue:
            return  # the next write reads the znode and reports it
        self._keep(memory, WrittenHistory([EncodedDecision.of(one) for one in decisions], node.stat.version))

    @staticmethod
    def _count(decision: Decision, plan: Plan) -> Decision:
        stopped = started = 0
        for step in plan.steps:
            for command in step.commands if isinstance(step, WriteLedgerAndCommands) else ():
                count = len(command.partitions)
                stopped += count if isinstance(command, StopFetcher) else 0
                started += count if isinstance(command, StartFetcher) else 0
        return replace(decision, stopped=decision.stopped + stopped, started=decision.started + started)

    def _resume(self, plan: Plan, observation: Observation, now: float) -> Progress | None:
        """Continues a decision that an earlier coordinator made and did not see settled. Its age comes from the wall
        clock."""
        target = observation.assignment
        if plan.state is not GroupState.REBALANCING or target is None or not target.timestamp_ms:
            return None
        last = next((d for d in reversed(self._read(plan.group)[0]) if d.generation == target.generation), None)
        if last is None or last.settled_ms is not None:
            return None
        age_s = max(0.0, self._clock.time() - last.decided_at_ms / 1000)
        return Progress(last, now - age_s)

    def _read(self, group: str) -> tuple[tuple[Decision, ...], int]:
        """(the decisions, the znode's version or -1 if it does not exist)."""
        path = layout.history(group)
        try:
            node = self._store.get(path)
        except NoNode:
            return (), -1
        try:
            return history_from_json(fields.load(node.data, path), path), node.stat.version
        except MalformedValue as error:
            log.warning("replacing unreadable history group=%s reason=%s", group, error)
            return (), node.stat.version

    def _write(self, memory: GroupMemory, decision: Decision) -> tuple[Op, ...]:
        known = memory.history
        if known is None:
            decisions, version = self._read(memory.group)
            known = WrittenHistory([EncodedDecision.of(one) for one in decisions], version)
        kept = [one for one in known.decisions if one.generation != decision.generation][1 - MAX_HISTORY :]
        kept.append(EncodedDecision.of(decision))
        while sum(len(one.data) for one in kept) > MAX_HISTORY_BYTES and len(kept) > 1:
            kept = kept[len(kept) // 2 :]
        self._keep(memory, WrittenHistory(kept, known.version + 1))
        data = _ENVELOPE % b",".join(one.data for one in kept)
        path = layout.history(memory.group)
        return (Create(path, data),) if known.version < 0 else (SetData(path, data, known.version),)

    def _keep(self, memory: GroupMemory, written: WrittenHistory) -> None:
        memory.history = written
        self._encoded = deque(one for one in self._encoded if one is not memory)
        self._encoded.append(memory)
        if len(self._encoded) > MAX_REMEMBERED:
            self._encoded.popleft().history = None
