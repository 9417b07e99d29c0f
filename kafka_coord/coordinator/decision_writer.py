"""Decides about groups and writes the decisions, several groups in one request where possible."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kafka_coord.coordinator.assignors import Assignor
from kafka_coord.coordinator.decide import decide
from kafka_coord.coordinator.execute import Executor, Prepared, Written
from kafka_coord.coordinator.history import DecisionLog
from kafka_coord.coordinator.idle import IdleGroups
from kafka_coord.coordinator.memory import GroupMemory
from kafka_coord.coordinator.observe import Snapshot
from kafka_coord.coordinator.pattern_budget import match_patterns
from kafka_coord.coordinator.steps import Plan
from kafka_coord.coordinator.tamper_repair import remember_ledgers, repairs
from kafka_coord.errors import Fenced, StoreError, StoreUnavailable
from kafka_coord.zk.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ActiveLeadership:
    """The part of its leadership that the handler uses. It calls ``still`` before it decides or writes anything."""

    epoch: int
    executor: Executor
    still: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class PreparedPlan:
    """The write of one group, and the snapshot it was decided from."""

    memory: GroupMemory
    plan: Plan
    snapshot: Snapshot
    prepared: Prepared


class DecisionWriter:
    """Decides and writes under one leadership, on the handler's thread."""

    def __init__(self, store: Store, executor: Executor, assignors: Mapping[str, Assignor], idle: IdleGroups) -> None:
        self._store = store
        self._executor = executor
        self._assignors = assignors
        self._idle = idle
        self._log = DecisionLog(store)

    def decide(self, memory: GroupMemory, snapshot: Snapshot) -> PreparedPlan | None:
        """``None`` if the group must be looked at again first: a deletion by hand was repaired, or matching its
        patterns takes longer than one pass may take."""
        repair = repairs(memory, snapshot)
        if repair:
            self._executor.write(repair)
            return None
        if not match_patterns(memory, snapshot.observation, self._store.clock):
            return None
        if snapshot.history is not None:
            self._log.remember(memory, snapshot.history)
        decided = decide(self._store, snapshot.observation, self._assignors)
        after = self._log.observe(memory, decided.plan, snapshot.observation)
        prepared = Prepared()
        if decided.plan.steps or after:
            prepared = self._executor.prepare(decided, snapshot.missing, after)
        return PreparedPlan(memory, decided.plan, replace(snapshot, observation=decided.observation), prepared)

    def together(self, plans: Sequence[PreparedPlan]) -> Mapping[str, Written]:
        """Writes the plans of several groups in one request, if they fit, so that no group waits for the writes of the
        others. Returns the results by group; the others must be written alone. Raises :class:`Fenced`, and
        :class:`StoreUnavailable` if everything may have been written."""
        writing = [one for one in plans if one.prepared.units]
        if len(writing) < 2:
            return {}
        try:
            found = self._executor.write_together([one.prepared for one in writing])
        except (Fenced, StoreUnavailable):
            raise
        except Exception as error:  # noqa: BLE001  whosever trouble it is, it is met again when each is written
            log.debug("writing groups=%d one by one reason=%r", len(writing), error)
            return {}
        return {one.memory.group: written for one, written in zip(writing, found or (), strict=False)}

    def alone(self, plan: PreparedPlan) -> Written:
        """Raises like :meth:`Executor.write_prepared`."""
        return self._executor.write_prepared(plan.prepared)

    def written(self, plan: PreparedPlan, written: Written) -> float | None:
        """Remembers the written values. Returns when (monotonic) to check again whether the group is at rest."""
        memory, snapshot = plan.memory, plan.snapshot
        remember_ledgers(memory, snapshot.observation, plan.plan if written.units else None)
        if plan.plan.steps:
            memory.mark_active()
            return None
        return self._idle.after_pass(memory, snapshot, plan.plan)

    def settle(self, plans: Sequence[PreparedPlan]) -> None:
        """Records which groups are at rest, for the next coordinator. Raises :class:`Fenced`."""
        ops = [(one.memory, op) for one in plans if (op := self._idle.unwritten(one.memory, one.snapshot)) is not None]
        if not ops:
            return
        try:
            self._idle.write(self._executor, ops)
        except Fenced:
            raise
        except StoreError as error:
            log.info("could not record that groups are at rest groups=%d: %s", len(ops), error)
            for memory, _ in ops:
                memory.invalidate()
