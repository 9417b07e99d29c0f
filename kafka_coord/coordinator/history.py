"""Records a group's latest decisions and operator actions in ZooKeeper, and, in the cluster history, this coordinator's
election and the operator actions that do not concern a managed group."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence

from msgspec import Raw
from msgspec.structs import replace

from kafka_coord.coordinator.execute import Executor
from kafka_coord.coordinator.memory import EncodedDecision, GroupMemory, Progress, WrittenHistory
from kafka_coord.coordinator.plan.operator_requests import DONE
from kafka_coord.coordinator.plan.reasons import cut
from kafka_coord.coordinator.steps import AT_REST, AnswerRequest, GroupState, Plan, SetTarget, WriteLedgerAndCommands
from kafka_coord.coordinator.tolerant_reads import read_each
from kafka_coord.errors import MalformedValue, MultiFailed, NoAuth, NoNode
from kafka_coord.model import (
    NO_PARTITIONS,
    Action,
    Assignment,
    Decision,
    Observation,
    PartitionSet,
    Request,
    RequestType,
    StartFetcher,
    StopFetcher,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.model.histories import MAX_ELECTIONS, ClusterHistory, Election, Trail, encoded_actions, kept, newest
from kafka_coord.model.operations import MAX_HISTORY, MAX_MOVES
from kafka_coord.zk import layout
from kafka_coord.zk.store import Clock, Create, GetData, Node, Op, SetData, Store

log = logging.getLogger(__name__)

MAX_MOVE_TEXT = 200
MAX_HISTORY_BYTES = 200_000
MAX_REMEMBERED = 32
"""The maximum number of cached histories. Each history takes up to ``MAX_HISTORY_BYTES``."""
_FORBIDDEN = "not recording the cluster history, because the ACL of %s forbids it; see kafka-coord acl check"
_UNKNOWN_END = "its session ended, or it was deposed"


def describe(plan: Plan, observation: Observation, decided_at_ms: int) -> Decision | None:
    """Returns the decision that a plan makes, or ``None`` if the plan does not set a new target."""
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
                name: cut(str(found), MAX_MOVE_TEXT) for name, found in (("gained", gained), ("lost", lost)) if found
            }
    return replace(
        _decision_of(target),
        decided_at_ms=decided_at_ms,
        moved=moved,
        moves=dict(list(moves.items())[:MAX_MOVES]),
        causes=step.causes,
    )


def _decision_of(target: Assignment) -> Decision:
    """Returns the part of a decision that the target itself records."""
    count = sum(map(len, target.members.values()))
    words = target.reason, target.assignor, target.timestamp_ms
    return Decision(target.generation, target.epoch, *words, len(target.members), count, moved=0)


def actions_of(plan: Plan, at_ms: int) -> tuple[Action, ...]:
    """Returns the operator actions that the plan carries out or records, in order of their requests."""
    steps = (step for step in plan.steps if isinstance(step, AnswerRequest) and step.result == DONE)
    asked = sorted((step.request for step in steps), key=lambda request: request.request_id)
    return tuple(action for request in asked if (action := action_of(request, at_ms)) is not None)


def action_of(request: Request, at_ms: int) -> Action | None:
    """Returns the operator action that a request carries out or records, or ``None`` if it only asks for a pass, or is
    not to be recorded."""
    if request.unrecorded:
        return None
    kind = request.action if request.type is RequestType.LOOK else str(request.type)
    return Action(kind, request.by, at_ms, request.reason, request.change or request.consumer) if kind else None


class DecisionLog:
    """Follows each group's newest decision until it is settled. Not thread-safe.

    The most recently written histories stay cached in encoded form, with their versions, so the next decision for the
    same group needs no read. If someone else has written the znode in the meantime, the next write fails, the cached
    history is dropped, and the next pass reads the znode again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._clock: Clock = store.clock
        self._encoded: deque[GroupMemory] = deque()
        """The groups whose history is cached, least recently written first."""

    def observe(
        self, memory: GroupMemory, plan: Plan, observation: Observation
    ) -> tuple[Decision | None, tuple[Op, ...]]:
        """Returns the decision that the pass makes or finds settled (or ``None``), and the write that records this
        decision and the operator actions."""
        decision = self._follow(memory, plan, observation)
        actions = actions_of(plan, int(self._clock.time() * 1000))
        if plan.state is GroupState.DEAD or (decision is None and not actions):
            return None, ()
        return decision, self._write(memory, decision, actions, observation.assignment)

    def _follow(self, memory: GroupMemory, plan: Plan, observation: Observation) -> Decision | None:
        """Returns the decision to write in the current pass, or ``None``."""
        now = self._clock.monotonic()
        decision = describe(plan, observation, int(self._clock.time() * 1000))
        if decision is not None:
            decision = self._count(decision, plan)
            if plan.state in AT_REST:  # nothing has to move, so this write also settles the decision
                memory.progress = None
                return replace(decision, settled_ms=0)
            memory.progress = Progress(decision, now)
            return decision
        if plan.state is GroupState.DEAD:
            memory.progress = None
            return None
        if memory.progress is not None and memory.progress.settling:  # the settling write took effect
            memory.progress = None
        memory.progress = progress = memory.progress or self._resume(plan, observation, now)
        if progress is None:
            return None
        elapsed_ms = round((now - progress.decided) * 1000)
        updated = self._count(progress.decision, plan)
        if updated.stopped_ms is None and updated.stopped and not any(x.stopping for x in observation.ledgers.values()):
            updated = replace(updated, stopped_ms=elapsed_ms)
        progress.decision = updated
        if plan.steps or plan.state not in AT_REST:
            return None
        progress.settling = True
        return replace(updated, settled_ms=elapsed_ms)

    def remember(self, memory: GroupMemory, node: Node) -> None:
        """Remembers the value of a history znode that was read elsewhere."""
        try:
            found = _decoded(node, layout.history(memory.group))
        except MalformedValue:
            return  # the next write rereads the znode and reports the fault
        self._keep(memory, found)

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
        """Returns the unsettled decision of an earlier coordinator, if any, so that this coordinator can keep following
        it. The decision's age is taken from the wall clock."""
        target = observation.assignment
        if plan.state is not GroupState.REBALANCING or target is None or not target.timestamp_ms:
            return None
        decisions = past_decisions(self._store, plan.group)
        last = next((d for d in reversed(decisions) if d.generation == target.generation), None)
        if last is None or last.settled_ms is not None:
            return None
        age_s = max(0.0, self._clock.time() - last.decided_at_ms / 1000)
        return Progress(last, now - age_s)

    def _read(self, group: str) -> WrittenHistory:
        path = layout.history(group)
        try:
            node = self._store.get(path)
        except NoNode:
            return WrittenHistory((), (), -1)
        try:
            return _decoded(node, path)
        except MalformedValue as error:
            log.warning("replacing unreadable history group=%s reason=%s", group, error)
            return WrittenHistory((), (), node.stat.version)

    def _write(
        self, memory: GroupMemory, decision: Decision | None, actions: Sequence[Action], target: Assignment | None
    ) -> tuple[Op, ...]:
        """Returns the write that records ``decision`` and ``actions``. If the history lacks the generation of
        ``target``, records that as well, so that numbering continues from there even if the target is lost."""
        history = memory.history or self._read(memory.group)
        kept = list(history.decisions)
        if decision is None and target is not None and all(one.generation < target.generation for one in kept):
            decision = _decision_of(target)
        if decision is not None:
            kept = [one for one in kept if one.generation != decision.generation][1 - MAX_HISTORY :]
            kept.append(EncodedDecision.of(decision))
        while sum(len(one.data) for one in kept) > MAX_HISTORY_BYTES and len(kept) > 1:
            kept = kept[len(kept) // 2 :]
        done = newest([*history.actions, *encoded_actions(actions)])
        self._keep(memory, WrittenHistory(kept, done, history.version + 1))
        value = {"version": fields.VERSION, "decisions": [Raw(one.data) for one in kept]}
        if done:
            value["actions"] = [Raw(one) for one in done]
        path, data = layout.history(memory.group), fields.dump(value)
        return (Create(path, data),) if history.version < 0 else (SetData(path, data, history.version),)

    def _keep(self, memory: GroupMemory, written: WrittenHistory) -> None:
        memory.history = written
        self._encoded = deque(one for one in self._encoded if one is not memory)
        self._encoded.append(memory)
        if len(self._encoded) > MAX_REMEMBERED:
            self._encoded.popleft().history = None


def _decoded(node: Node, path: str) -> WrittenHistory:
    found = Trail.from_json(fields.load(node.data, path), path)
    for one in found.unreadable:
        log.warning("leaving unreadable entries out of a history path=%s reason=%s", one.path, one.reason)
    return WrittenHistory(
        list(map(EncodedDecision.of, found.decisions)), encoded_actions(found.actions), node.stat.version
    )


def past_decisions(store: Store, group: str) -> tuple[Decision, ...]:
    """Reads the group's past decisions. Returns an empty tuple if they are unreadable."""
    path = layout.history(group)
    (node,) = read_each(store, [GetData(path)])
    try:
        return Trail.from_json(fields.load(node.data, path), path).decisions if isinstance(node, Node) else ()
    except MalformedValue:
        return ()  # reported when the history is replaced


class ClusterHistoryWriter:
    """Records one period of leadership in the cluster history. :meth:`add` is safe to call from any thread; all other
    methods belong to the service's thread."""

    def __init__(self, store: Store, executor: Executor, own: Election) -> None:
        self._store = store
        self._executor = executor
        self._own = own
        self._new: deque[Action] = deque()
        self._recorded = False

    def add(self, action: Action) -> None:
        """Adds an operator action, which the next :meth:`step` records."""
        self._new.append(action)

    def step(self) -> None:
        """Writes any new entries. If this raises :class:`StoreError`, call it again."""
        if self._recorded and not self._new:
            return
        actions = tuple(self._new)
        if self._write(self._own, actions):
            self._recorded = True
            for _ in actions:
                self._new.popleft()

    def end(self, why: str) -> None:
        """Records that this instance's leadership is ending. Call it while this instance still leads."""
        self._write(replace(self._own, ended_ms=self._now_ms(), why=why), tuple(self._new))

    def _write(self, own: Election, actions: tuple[Action, ...]) -> bool:
        """Writes the history. Returns false if someone else wrote it first. If the ACL forbids the write, drops the
        entries and returns true."""
        path = layout.HISTORY
        stored, version = ClusterHistory(), -1
        try:
            node = self._store.get(path)
            version = node.stat.version
            stored = ClusterHistory.from_bytes(node.data, path)
        except NoNode:
            pass
        except NoAuth:
            log.warning(_FORBIDDEN, path)
            return True
        except MalformedValue as error:
            log.warning("replacing an unreadable history: %s", error)
        for one in stored.unreadable:
            log.warning("leaving unreadable entries out of a history path=%s reason=%s", one.path, one.reason)
        earlier = [
            one if one.ended_ms is not None else replace(one, ended_ms=own.elected_ms, why=_UNKNOWN_END)
            for one in stored.elections
            if one.epoch != own.epoch
        ]
        new = [one for one in actions if one not in stored.actions]  # they may have been written already
        written = ClusterHistory((*earlier, own)[-MAX_ELECTIONS:], kept([*stored.actions, *new]))
        data = written.to_bytes()
        try:
            self._executor.write([[Create(path, data) if version < 0 else SetData(path, data, version)]])
        except MultiFailed as error:
            if isinstance(error.cause, NoAuth):
                log.warning(_FORBIDDEN, path)
                return True
            log.debug("reading the history again reason=%s", error)
            return False
        return True

    def _now_ms(self) -> int:
        return int(self._store.clock.time() * 1000)
