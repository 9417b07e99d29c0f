"""Plans groups and writes their plans, several in one request where possible."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kafka_coord.coordinator.assignors import Assignor
from kafka_coord.coordinator.decide import decide
from kafka_coord.coordinator.execute import Executor, NewCommands, Units
from kafka_coord.coordinator.history import DecisionLog
from kafka_coord.coordinator.memory import GroupMemory
from kafka_coord.coordinator.observe import Snapshot
from kafka_coord.coordinator.pattern_budget import match_patterns
from kafka_coord.coordinator.steps import Plan
from kafka_coord.coordinator.tamper_repair import repairs
from kafka_coord.errors import Fenced, StoreUnavailable
from kafka_coord.model import Decision
from kafka_coord.zk.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ActiveLeadership:
    """The handler's view of its leadership. The handler calls ``still`` before every decision and every write."""

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
        if snapshot.history is not None:
            self._log.remember(memory, snapshot.history)
        decided = decide(self._store, snapshot.observation, self._assignors, memory.covered)
        memory.covered = decided.start.covered or memory.covered
        decision, after = self._log.observe(memory, decided.plan, snapshot.observation)
        units: Units = ()
        if decided.plan.steps or decided.start.parent or after:
            units = self._executor.prepare(decided, snapshot.missing, after)
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
