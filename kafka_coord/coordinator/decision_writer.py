"""Plans groups and writes their plans, several in one request where possible. Before that, repairs what someone has
deleted by hand, and matches patterns that have not been matched yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kafka_coord.coordinator.assignors import Assignor
from kafka_coord.coordinator.execute import Decided, Executor, NewCommands, Units
from kafka_coord.coordinator.history import DecisionLog
from kafka_coord.coordinator.image import Snapshot
from kafka_coord.coordinator.memory import GroupMemory, Matched
from kafka_coord.coordinator.offset_expiry import outlives_retention
from kafka_coord.coordinator.plan import plan
from kafka_coord.coordinator.start_offsets import StartOffsets, read_offsets_zxid, read_start_offsets
from kafka_coord.coordinator.steps import (
    AnswerRequest,
    DeleteOffsets,
    Plan,
    RemoveGroup,
    WriteLedgerAndCommands,
    WriteOffsets,
)
from kafka_coord.errors import Fenced, StoreUnavailable
from kafka_coord.model import NO_PARTITIONS, Coverage, Decision, Observation
from kafka_coord.zk import layout
from kafka_coord.zk.store import Clock, Create, Delete, Op, Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ActiveLeadership:
    """The handler's view of its leadership. The handler calls ``still`` before every decision and every write: it says
    whether this instance leads and its listeners know of every change before the last break of its connection."""

    epoch: int
    executor: Executor
    still: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class PreparedPlan:
    """A plan that is ready to be written, and the snapshot it is based on. ``decision`` is the decision that the pass
    makes, or the earlier one that it finds settled."""

    memory: GroupMemory
    plan: Plan
    snapshot: Snapshot
    units: Units
    decision: Decision | None = None


class DecisionWriter:
    """Decides and writes during one period of leadership, on the handler's thread."""

    def __init__(self, store: Store, executor: Executor, assignors: Mapping[str, Assignor]) -> None:
        self._store = store
        self._executor = executor
        self._assignors = assignors
        self._log = DecisionLog(store)

    def decide(self, memory: GroupMemory, snapshot: Snapshot) -> PreparedPlan | None:
        """Plans one group. Returns ``None`` if the group needs another pass first, either because a manual deletion had
        to be repaired or because some of the group's patterns have not been matched yet."""
        repair = repairs(memory, snapshot)
        if repair:
            self._executor.write(repair)
            return None
        if not match_patterns(memory, snapshot.observation, self._store.clock):
            return None
        if snapshot.image.history is not None:
            self._log.remember(memory, snapshot.image.history)
        decided = decide(self._store, snapshot.observation, self._assignors, memory.covered)
        memory.covered = decided.start.covered or memory.covered
        decision, after = self._log.observe(memory, decided.plan, snapshot.observation)
        units: Units = ()
        if decided.plan.steps or decided.start.parent or after:
            units = self._executor.prepare(decided, snapshot.image.missing, after)
        snapshot = replace(snapshot, observation=decided.observation)
        return PreparedPlan(memory, decided.plan, snapshot, units, decision)

    def together(self, plans: Sequence[PreparedPlan]) -> Mapping[str, NewCommands]:
        """Writes the plans of several groups in one request, so that no group waits for another. Returns the results by
        group. If the result is empty, each plan must be written on its own. Raises :class:`Fenced`, and
        :class:`StoreUnavailable` if the outcome is unknown."""
        writing = [one for one in plans if one.units]
        if len(writing) < 2:
            return {}
        try:
            results = self._executor.write_together([one.units for one in writing])
        except (Fenced, StoreUnavailable):
            raise
        except Exception as error:  # noqa: BLE001  writing each plan on its own will show which one fails
            log.debug("writing each group separately groups=%d reason=%r", len(writing), error)
            return {}
        return {one.memory.group: commands for one, commands in zip(writing, results or (), strict=False)}


def decide(
    store: Store, observation: Observation, assignors: Mapping[str, Assignor], covered: Coverage | None = None
) -> Decided:
    """Plans, reads the offsets of the partitions that the plan starts, and replans without any partitions whose offset
    is unreadable.

    A plan is valid only as a whole: one step may release partitions that the next one starts. So this function
    replans instead of dropping steps. Each round finds at least one more unreadable znode and leaves its partitions out
    of the next plan, so the loop terminates.

    ``covered`` is what the group is known to remember of its subscriptions. Anything beyond it is recorded even if the
    plan starts nothing. So a topic that is created while the group is paused, or waits for its first topic, came later
    (ADR 41).

    No one holds the partitions that a plan starts, so no one commits their offsets after they are read here. If a group
    has no members, only this coordinator changes its offsets.
    """
    while True:
        decided = plan(observation, assignors)
        if observation.offsets_zxid is None and _removes_unless_changed(decided):
            observation = replace(observation, offsets_zxid=read_offsets_zxid(store, observation.group))
            continue
        if observation.retention_passed and _removes(decided) and outlives_retention(store, observation.group):
            observation = replace(observation, retention_passed=False)
            continue
        started = decided.started
        if not started:
            return Decided(decided, observation, _covering(store, observation, decided, covered or Coverage()))
        start = read_start_offsets(store, observation.group, started, observation.topics, observation.members)
        if not start.unreadable:
            return Decided(decided, observation, start)
        found = dict.fromkeys(start.unreadable.values())
        observation = replace(observation, unreadable=(*observation.unreadable, *found))


def _covering(store: Store, observation: Observation, decided: Plan, covered: Coverage) -> StartOffsets:
    """Reads what there is to record of the members' subscriptions. A step that changes offsets goes first, because it
    may create the same znodes."""
    if covered.covers_all(one.subscription for one in observation.members.values()):
        return StartOffsets()
    if any(isinstance(step, WriteOffsets | DeleteOffsets | RemoveGroup) for step in decided.steps):
        return StartOffsets()
    return read_start_offsets(store, observation.group, NO_PARTITIONS, observation.topics, observation.members)


def _removes_unless_changed(decided: Plan) -> bool:
    asked = any(isinstance(step, AnswerRequest) and step.request.unchanged_since for step in decided.steps)
    return asked and _removes(decided)


def _removes(decided: Plan) -> bool:
    return any(isinstance(step, RemoveGroup) for step in decided.steps)


def repairs(memory: GroupMemory, snapshot: Snapshot) -> list[list[Op]]:
    """Returns the writes that must precede a decision. Usually, there are none.

    If the ledger of a live incarnation was deleted, it is restored; otherwise, its partitions would look free while the
    consumer still reads them. If a live member has a ledger but no channel, its registration is deleted, so that the
    member registers again: without a channel, it cannot acknowledge commands, yet its unacknowledged commands would
    look acknowledged.
    """
    observation = snapshot.observation
    group = observation.group
    unreadable = {found.path for found in observation.unreadable}
    units: list[list[Op]] = []
    for consumer, ledger in memory.ledgers.items():
        member, path = observation.members.get(consumer), layout.ledger(group, consumer)
        if member is None or member.incarnation != ledger.incarnation or not ledger.held:
            continue
        if consumer not in observation.ledgers and path not in unreadable:
            log.warning(
                "restored a deleted ledger, because its consumer is alive path=%s holds=%s; to release the "
                "partitions, evict the consumer (kafka-coord groups evict %s %s)",
                path,
                str(ledger.held)[:200],
                group,
                consumer,
                extra={"event": "ledger_restored", "group": group, "consumer": consumer},
            )
            units.append([Create(path, ledger.to_bytes())])
    if units and layout.owners(group) in snapshot.image.missing:
        units.insert(0, [Create(layout.owners(group))])
    for consumer, member in observation.members.items():
        current = observation.ledgers.get(consumer)
        if current is not None and current.incarnation == member.incarnation and consumer not in observation.channels:
            log.warning(
                "evicted consumer=%s group=%s: someone deleted its channel %s, so it cannot acknowledge; "
                "it must register again",
                consumer,
                group,
                layout.channel(group, consumer),
                extra={"event": "channel_deleted"},
            )
            units.append([Delete(layout.registration(group, consumer))])
    return units


def remember_ledgers(memory: GroupMemory, observation: Observation, written: Plan) -> None:
    """Remembers the observed ledgers, updated with what the plan wrote."""
    ledgers = dict(observation.ledgers)
    for step in written.steps:
        if isinstance(step, WriteLedgerAndCommands):
            ledgers[step.ledger.consumer] = step.ledger
    memory.ledgers = ledgers


BUDGET_S = 0.1
"""The number of seconds that one pass may spend on matching before other groups get their turn."""


def match_patterns(memory: GroupMemory, observation: Observation, clock: Clock) -> bool:
    """Matches the group's patterns. Returns whether all of them are done. If not, call this function again once the
    other groups have had their turn.

    ``plan`` matches each pattern against each topic, which is slow only the first time, because results are cached
    (``model.names``). This function fills the cache, within a budget, before the group is planned.
    """
    subscriptions = {
        (m.subscription.kind, m.subscription.pattern): m.subscription
        for m in observation.members.values()
        if m.subscription.is_wildcard
    }
    patterns, topics = frozenset(subscriptions), observation.topics
    before = memory.matched
    if before is not None and before.topics is topics and patterns <= before.patterns:
        return True
    until = clock.monotonic() + BUDGET_S
    for subscription in subscriptions.values():
        for topic in topics:
            if subscription.knows(topic):
                continue
            subscription.wants(topic)
            if clock.monotonic() > until:
                _log_once(memory, len(patterns), len(topics))
                return False
    memory.matching_was_logged = False
    if patterns:
        memory.matched = Matched(topics, patterns)
    return True


def _log_once(memory: GroupMemory, patterns: int, topics: int) -> None:
    if not memory.matching_was_logged:
        memory.matching_was_logged = True
        log.info(
            "matching slow patterns against %d topics; other groups go first group=%s patterns=%d",
            topics,
            memory.group,
            patterns,
        )
