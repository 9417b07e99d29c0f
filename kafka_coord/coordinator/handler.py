"""The rebalance request handler: takes groups from the queue, reads them, decides, and writes the decisions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from msgspec.structs import replace

from kafka_coord.coordinator.assignors import Assignor
from kafka_coord.coordinator.deadlines import CoordinatorOptions
from kafka_coord.coordinator.decision_writer import ActiveLeadership, DecisionWriter, PreparedPlan, remember_ledgers
from kafka_coord.coordinator.execute import Decided, NewCommands
from kafka_coord.coordinator.group_reader import GroupReader, SnapshotResult
from kafka_coord.coordinator.history import actions_of
from kafka_coord.coordinator.idle import IdleGroups
from kafka_coord.coordinator.memory import GroupMemories, GroupMemory, GroupRegistry, Outcome, TopicCatalog
from kafka_coord.coordinator.offset_expiry import OffsetExpiry
from kafka_coord.coordinator.pending_requests import PendingRequests
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.coordinator.queue import RebalanceRequestQueue, Scheduler
from kafka_coord.coordinator.reporting import Rebalances, StuckGroup, report_failure, report_pass, say_again_at, stuck
from kafka_coord.coordinator.steps import AnswerRequest, GroupState, Plan, SetTarget
from kafka_coord.errors import Fenced, MultiFailed, StoreError, StoreUnavailable
from kafka_coord.model import Action, GroupSettings, Observation
from kafka_coord.model.histories import about_group
from kafka_coord.zk.store import Store

log = logging.getLogger(__name__)


class RebalanceObserver(Protocol):
    """Receives each completed pass. Its methods must neither block nor raise."""

    def written(self, plan: PreparedPlan, commands: NewCommands) -> None:
        """Called on the handler's thread after each completed pass. ``commands`` are the command znodes that the pass
        created."""

    def interrupted(self) -> None:
        """Called when the leadership ends. Passes that have not completed by then never will."""


class RebalanceRequestHandler:
    """Makes level-triggered passes over groups during one period of leadership, on one thread (see :meth:`step`).

    The handler never waits for a consumer. A consumer acknowledges a command by deleting its znode; this fires a
    one-shot watch, which causes another pass. The handler keeps a :class:`GroupMemory` for each group, but safety never
    depends on it.
    """

    def __init__(
        self,
        store: Store,
        leadership: ActiveLeadership,
        queue: RebalanceRequestQueue,
        registry: GroupRegistry,
        catalog: TopicCatalog,
        requests: PendingRequests,
        assignors: Mapping[str, Assignor],
        options: CoordinatorOptions,
    ) -> None:
        self._clock = store.clock
        self.on_removal: Callable[[Action], None] = lambda _: None
        """Called when an operator removes a group, to record the removal outside the group's own history."""
        self.observer: RebalanceObserver | None = None
        self._leadership = leadership
        self._queue = queue
        self._registry = registry
        self._catalog = catalog
        self._requests = requests
        self.memories = GroupMemories(registry)
        """Filled at startup, and owned by the handler from its first step on."""
        self.idle = IdleGroups(store, catalog, options)
        self._reader = GroupReader(store, queue, requests, catalog, self.memories, self.idle, options, leadership.epoch)
        self._writer = DecisionWriter(store, leadership.executor, assignors)
        self._scheduler = Scheduler(store, queue, options)
        self._expiry = OffsetExpiry(store, leadership.executor, options)
        self._handling: frozenset[str] = frozenset()
        self._stepped_at = self._clock.monotonic()
        self.deposed = False
        self.closed = False
        self.passes = 0
        self.failed_passes = 0
        self.rebalances = Rebalances()

    # --- safe to call from any thread --------------------------------------------------------------------------------

    @property
    def outcomes(self) -> Mapping[str, Outcome]:
        """The result of each group's last pass."""
        return {memory.group: memory.outcome for memory in self.memories if memory.outcome is not None}

    @property
    def unreadable(self) -> int:
        """The number of znodes that the last passes could not read or decode, including offsets that keep partitions
        from being started."""
        return sum(len(memory.unreadable) for memory in self.memories)

    def stuck_groups(self) -> list[StuckGroup]:
        """Returns the groups that are stuck; see :class:`StuckGroup`."""
        now = self._clock.monotonic()
        return [found for memory in self.memories if (found := stuck(memory, now)) is not None]

    def perhaps_paused(self) -> set[str]:
        """Returns the groups that the last pass found paused, and the groups that are being handled now."""
        handling = self._handling
        return {group for group, outcome in self.outcomes.items() if outcome.state is GroupState.PAUSED} | handling

    def age_s(self) -> float:
        """Returns the seconds since the last step ended."""
        return self._clock.monotonic() - self._stepped_at

    # --- handler's thread --------------------------------------------------------------------------------------------

    def step(self, timeout_s: float = 0.0) -> bool:
        """Handles a batch of due groups, waiting up to ``timeout_s`` for the first. Returns whether any group was due.
        Does nothing if this instance no longer leads."""
        handled = self._step(timeout_s)
        self._stepped_at = self._clock.monotonic()
        return handled

    def _step(self, timeout_s: float) -> bool:
        if not self.may_decide():
            return False
        batch = self._reader.take(timeout_s)
        if batch is None:
            return False
        self._handling = frozenset(memory.group for memory in batch.memories)
        try:
            if batch.idle:
                self._check_idle(batch.memories)
            else:
                self._handle(batch.memories)
        finally:
            self._handling = frozenset()
        return True

    def may_decide(self) -> bool:
        """Returns whether this instance still leads, and knows of every change before the last break of its
        connection."""
        return not (self.closed or self.deposed) and self._leadership.still()

    def _check_idle(self, memories: Sequence[GroupMemory]) -> None:
        """Checks whether the groups are still at rest and enqueues those that are not."""
        try:
            still_idle = self.idle.still_idle(memories)
        except StoreError as error:
            for memory in memories:
                self._failed(memory, error)
            return
        for memory, idle in zip(memories, still_idle, strict=True):
            if not idle or memory.at_rest is None:
                memory.mark_active()
                self._queue.request(memory.group)
                continue
            self.passes += 1
            memory.failures = 0
            memory.unsettled = None
            if memory.outcome is None:
                members = memory.at_rest.settled.members
                state = GroupState.STABLE if members else GroupState.EMPTY
                memory.outcome = Outcome(state, f"at rest, as recorded by an earlier coordinator: {members} members")
            self._scheduler.periodic(memory)

    def _handle(self, memories: Sequence[GroupMemory]) -> None:
        plans: list[PreparedPlan] = []
        for memory, result in zip(memories, self._reader.snapshots(memories), strict=True):
            if not self.may_decide():
                self._queue.request(memory.group)
                continue
            with self._isolated(memory):
                plan = self._decide(memory, result)
                if plan is None:
                    memory.failures = 0
                else:
                    plans.append(plan)
        self._write(plans)

    def _decide(self, memory: GroupMemory, found: SnapshotResult) -> PreparedPlan | None:
        """Plans a group and prepares the write. Returns ``None`` if the group is gone or needs another pass first."""
        self.passes += 1
        if isinstance(found, Exception):
            raise found
        if found is None:
            self._gone(memory.group)
            return None
        observation = found.observation
        new_interests = self._registry.update(memory.group, observation.members.values())
        if new_interests and observation.topics is not self._catalog.topics:
            self._queue.request(memory.group)  # topics changed before their listener knew this group's interests
        plan = self._writer.decide(memory, found)
        if plan is None:
            self._queue.request(memory.group)
        return plan

    def _write(self, plans: Sequence[PreparedPlan]) -> None:
        written: Mapping[str, NewCommands] = {}
        try:
            if self.may_decide():
                written = self._writer.together(plans)
        except Fenced as error:
            self._depose(error)
        except StoreUnavailable as error:  # the write may have taken effect
            for one in plans:
                if one.units:
                    one.memory.invalidate()
                    self._failed(one.memory, error)
            plans = [one for one in plans if not one.units]
        for one in plans:
            done = written.get(one.memory.group)
            if done is None and not self.may_decide():
                one.memory.invalidate()
                self._queue.request(one.memory.group)
                continue
            with self._isolated(one.memory):
                self._finish(one, self._leadership.executor.write_prepared(one.units) if done is None else done)
                one.memory.failures = 0
        if self.may_decide():
            try:
                self.idle.settle(self._leadership.executor, [(one.memory, one.snapshot) for one in plans])
            except Fenced as error:
                self._depose(error)

    def _finish(self, plan: PreparedPlan, commands: NewCommands) -> None:
        memory, observation = plan.memory, plan.snapshot.observation
        self._record_answers(plan.plan)
        report_pass(memory, plan.plan, observation, self._clock.monotonic())
        if plan.decision is not None:
            self.rebalances.count(plan.decision, is_new=any(isinstance(step, SetTarget) for step in plan.plan.steps))
        remember_ledgers(memory, observation, plan.plan)
        self._scheduler.written(plan, commands, self.idle.after_pass(memory, plan.snapshot, plan.plan))
        if self.observer is not None:
            self.observer.written(plan, commands)
        if plan.plan.quiet(observation) and self._expiry.is_due(memory):
            self._expiry.examine(memory, observation)
            if memory.nothing_kept:
                memory.mark_active()
                self._queue.request(memory.group)
        due = say_again_at(memory)
        if due is not None:
            self._queue.request_at(memory.group, due)

    def _record_answers(self, plan: Plan) -> None:
        for step in plan.steps:
            if isinstance(step, AnswerRequest):
                self._requests.record_answer(replace(step.request, result=step.result, message=step.message))
        for action in actions_of(plan, int(self._clock.time() * 1000)):
            log.info("%s group=%s", action.sentence, plan.group, extra=action.logged)
            if plan.state is GroupState.DEAD:
                self.on_removal(replace(action, change=about_group(plan.group)))

    def _gone(self, group: str) -> None:
        """Drops a group that no longer exists, after answering the requests about it."""
        requests = self._requests.of_group(group)
        if requests:
            absent = Observation(group, self._leadership.epoch, {}, {}, {}, None, {}, GroupSettings())
            steps = tuple(AnswerRequest(r, "refused", f"there is no group {group}") for r in requests)
            plan = Plan(group, GroupState.DEAD, f"refused {counted(len(steps), 'request')}: no such group", steps)
            executor = self._leadership.executor
            executor.write_prepared(executor.prepare(Decided(plan, absent)))
            self._record_answers(plan)
            log.info("%s group=%s", plan.summary, group)
        self.memories.drop(group)

    @contextmanager
    def _isolated(self, memory: GroupMemory) -> Iterator[None]:
        """Confines a failure to one group, so that other groups are still handled."""
        try:
            yield
        except Fenced as error:
            self._depose(error)
        except Exception as error:
            if not isinstance(error, StoreError):
                log.exception(
                    "cannot handle group=%s (this is a bug); retrying later",
                    memory.group,
                    extra={"event": "group_failed"},
                )
            memory.invalidate()
            if isinstance(error, MultiFailed):
                self._remove_obstacle(error)
            self._failed(memory, error)

    def _remove_obstacle(self, refused: MultiFailed) -> None:
        try:
            self._requests.refused(refused)
            self._leadership.executor.clear_below_leaf(refused)
        except Fenced as error:
            self._depose(error)
        except StoreError as error:
            log.warning("could not remove foreign znodes below path=%s: %s", refused.path, error)

    def _failed(self, memory: GroupMemory, error: Exception) -> None:
        self.failed_passes += 1
        self._scheduler.after_failure(memory, error)
        if not isinstance(error, StoreUnavailable):  # an outage affects all groups, and the service reports it
            report_failure(memory, error, self._clock.monotonic())

    def _depose(self, error: Fenced) -> None:
        log.warning("deposed epoch=%d reason=%s", self._leadership.epoch, error, extra={"event": "deposed"})
        self.deposed = True
