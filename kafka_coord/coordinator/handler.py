"""The rebalance request handler: takes a group, looks, decides, writes, and goes on to the next."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from kafka_coord.coordinator.assignors import Assignor
from kafka_coord.coordinator.catalog import TopicCatalog
from kafka_coord.coordinator.decide import Decided, decide
from kafka_coord.coordinator.execute import Executor, Prepared, Written
from kafka_coord.coordinator.history import DecisionLog
from kafka_coord.coordinator.idle import IdleGroups, spread
from kafka_coord.coordinator.observe import Decoded, GroupQuery, Snapshot, observe
from kafka_coord.coordinator.options import CoordinatorOptions
from kafka_coord.coordinator.pattern_budget import PatternBudget
from kafka_coord.coordinator.plan.reasons import cut
from kafka_coord.coordinator.queue import RebalanceRequestQueue
from kafka_coord.coordinator.reading import report
from kafka_coord.coordinator.registry import GroupRegistry
from kafka_coord.coordinator.requests import PendingRequests
from kafka_coord.coordinator.steps import AT_REST, AnswerRequest, GroupState, Plan
from kafka_coord.coordinator.tamper_repair import TamperRepair
from kafka_coord.coordinator.timers import GroupTimers
from kafka_coord.errors import Fenced, MultiFailed, NoAuth, NotEmpty, StoreError, StoreUnavailable
from kafka_coord.model import GroupSettings, Observation, Unreadable
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store, WatchEvent, WatchType

log = logging.getLogger(__name__)

MAX_SUMMARY_CHARS = 2_000

GROUPS_AT_ONCE = 16
"""So many groups that are due together are looked at together."""
GLANCES_AT_ONCE = 128
"""So many, where it is only asked whether they still are at rest."""
GATHER_S = 0.01
"""How long others are waited for when one of several acknowledgements has come: a look and a write for all cost less
than for each. The last one is not waited with."""
BLOCKED_LOOK_PART = 0.05
"""Of the look interval: how soon a group is looked at again when an unreadable offset keeps a partition from its owner.
Nothing watches offsets, so this bounds how long a healed one is waited for."""
LOOK_AGAIN_S = 0.5
"""How soon a group that was sent commands is looked at again, if no event of it comes before."""

_LEAVES = {("ids", 2), ("owners", 2), ("channel", 3), ("offsets", 3)}
"""Kinds of znodes of a group that have no children, by name and depth."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the last pass over a group found: its state and the plan's sentence."""

    state: GroupState
    summary: str


@dataclass(frozen=True, slots=True)
class Leading:
    """What the handler needs of its leadership. ``still`` is asked before anything is decided or written."""

    epoch: int
    executor: Executor
    still: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class _Decided:
    """A plan, what it was made of, and what is to be written for it."""

    plan: Plan
    look: Snapshot
    prepared: Prepared


class RebalanceRequestHandler:
    """Level-triggered passes over groups, for one leadership, on one thread (see :meth:`step`).

    It never waits for a consumer: an acknowledgement is the deletion of a command znode, which a one-shot watch turns
    into one more event. Nothing it remembers matters for safety.
    """

    def __init__(
        self,
        store: Store,
        leading: Leading,
        queue: RebalanceRequestQueue,
        registry: GroupRegistry,
        catalog: TopicCatalog,
        requests: PendingRequests,
        assignors: Mapping[str, Assignor],
        options: CoordinatorOptions,
    ) -> None:
        self._store = store
        self._leading = leading
        self._queue = queue
        self._registry = registry
        self._catalog = catalog
        self._requests = requests
        self._assignors = assignors
        self._options = options
        self._decisions = DecisionLog(store)
        self._mending = TamperRepair()
        self._matching = PatternBudget()
        self.resting = IdleGroups(store, catalog, options)
        """Filled at startup, and the handler's from the first step on."""
        self._timers: dict[str, GroupTimers] = {}
        self._decoded: dict[str, Decoded] = {}
        self._failures: dict[str, int] = {}
        self._reported: dict[str, frozenset[Unreadable]] = {}
        self._armed: dict[str, set[str]] = {}
        self.outcomes: dict[str, Outcome] = {}
        self._looking_at: frozenset[str] = frozenset()
        self.deposed = False
        self.closed = False
        self.passes = 0
        self.failed_passes = 0
        self._stepped_at = store.clock.monotonic()

    @property
    def unreadable(self) -> int:
        """How many znodes are left alone because they cannot be decoded, as last seen."""
        return sum(len(found) for found in list(self._reported.values()))

    def remember(self, group: str, consumers: Sequence[str], decoded: dict[str, tuple[int, object]]) -> None:
        """What was read of a group before it was first looked at (see :class:`Decoded`). Before the first step."""
        memory = self._decoded[group] = Decoded()
        memory.replace(decoded)
        memory.consumers = tuple(consumers)

    def age_s(self) -> float:
        """How long ago the last step ended, in s. For any thread."""
        return self._store.clock.monotonic() - self._stepped_at

    def step(self, timeout_s: float = 0.0) -> bool:
        """Handles the groups that are due, or the first that is within ``timeout_s``: up to ``GROUPS_AT_ONCE`` of them,
        looked at together and then handled in turn. Whether there were any. Decides nothing unless leading."""
        handled = self._step(timeout_s)
        self._stepped_at = self._store.clock.monotonic()
        return handled

    def _step(self, timeout_s: float) -> bool:
        if self.closed or self.deposed or not self._leading.still():
            return False
        first = self._queue.take(timeout_s) if timeout_s > 0 else self._queue.take_now()
        if first is None:
            return False
        glances = self._may_glance(first)
        groups = self._together(first, glances=glances)
        self._looking_at = frozenset(groups)
        try:
            if glances:
                self._glance(groups)
            else:
                self._look_and_handle(groups)
        finally:
            self._looking_at = frozenset()
        return True

    def _may_glance(self, group: str) -> bool:
        """Whether it is enough to ask if the group that was taken last is still at rest."""
        return self._queue.last_was_calm and self.resting.rests(group) and not self._requests.of_group(group)

    def _together(self, first: str, *, glances: bool) -> list[str]:
        """The group that was taken, and those to be looked at in the same way with it."""
        groups = {first: None}
        most = GLANCES_AT_ONCE if glances else GROUPS_AT_ONCE
        while len(groups) < most and (other := self._queue.take_now()) is not None:
            if other in groups:  # something happened to it since it was taken
                self._queue.request(other)
                break
            if self._may_glance(other) != glances:
                if self._queue.last_was_calm:
                    self._queue.put_back(other)
                else:
                    self._queue.request(other)
                break
            groups[other] = None
        return list(groups)

    def _glance(self, groups: list[str]) -> None:
        """Asks whether these still are at rest; who is not is looked at."""
        try:
            found = self.resting.glance(groups)
        except StoreError as error:
            for group in groups:
                self._again_later(group, error)
            return
        except Exception:
            log.exception("cannot tell whether groups are at rest groups=%d: looking at each", len(groups))
            found = [False] * len(groups)
        for group, at_rest in zip(groups, found, strict=True):
            if not at_rest:
                self.resting.mark_active(group)
                self._queue.request(group)
                continue
            self.passes += 1
            self._failures.pop(group, None)
            if group not in self.outcomes:
                members = self.resting.members(group)
                state = GroupState.STABLE if members else GroupState.EMPTY
                self.outcomes[group] = Outcome(state, f"at rest, as found by the coordinator before: {members} members")
            self._queue.request_at(group, self._interval_end(group))

    def _look_and_handle(self, groups: list[str]) -> None:
        looks: Mapping[str, Snapshot | Exception | None] = {}
        if self._leading.still():
            try:
                looks = self._look(groups)
            except Exception as error:  # noqa: BLE001  whosever trouble it is, it is met again when each is looked at
                looks = dict.fromkeys(groups, error) if isinstance(error, StoreError) else self._look_at_each(groups)
        ready: list[_Decided] = []
        for group in groups:
            if group not in looks or not self._may_go_on():
                self._queue.request(group)
                continue
            with self._troubles_of(group):
                decided = self._decide(group, looks[group])
                if decided is None:
                    self._failures.pop(group, None)
                else:
                    ready.append(decided)
        for decided, written in self._write_together(ready):
            group = decided.plan.group
            if written is None and not self._may_go_on():
                self._decisions.invalidate(group)
                self._queue.request(group)
                continue
            with self._troubles_of(group):
                self._finish(decided, written or self._leading.executor.write_prepared(decided.prepared))
                self._failures.pop(group, None)
        self._write_down(ready)

    def _write_down(self, decided: Iterable[_Decided]) -> None:
        """That groups are at rest, for whoever is elected next."""
        ops = {}
        for one in decided:
            with self._troubles_of(one.plan.group):
                op = self.resting.unwritten(one.look)
                if op is not None:
                    ops[one.plan.group] = op
        if not ops or not self._may_go_on():
            return
        try:
            self.resting.write(self._leading.executor, ops)
        except Fenced as error:
            self._depose(error)
        except StoreError as error:
            log.info("could not write down that groups are at rest groups=%d: %s", len(ops), error)
            for group in ops:
                self.resting.invalidate(group)

    def _may_go_on(self) -> bool:
        return not (self.closed or self.deposed) and self._leading.still()

    @contextmanager
    def _troubles_of(self, group: str) -> Iterator[None]:
        """What goes wrong with one group must never stop the others."""
        try:
            yield
        except Fenced as error:
            self._depose(error)
        except StoreError as error:
            self.resting.mark_active(group)
            self._again_later(group, error)
        except Exception:
            log.exception("cannot handle group=%s: looking again later", group)
            self.resting.mark_active(group)
            self._again_later(group, None)

    def _depose(self, error: Fenced) -> None:
        log.warning("deposed: another coordinator was elected epoch=%d reason=%s", self._leading.epoch, error)
        self.deposed = True

    def _write_together(self, ready: Sequence[_Decided]) -> list[tuple[_Decided, Written | None]]:
        """Writes what was decided for several groups in one request, if it fits and holds: whoever waits for the last
        of them does not wait for a write each. ``None``: not written, and to be written by itself."""
        writing = [one for one in ready if one.prepared.units]
        found: list[Written] | None = None
        if len(writing) > 1 and self._may_go_on():
            try:
                found = self._leading.executor.write_together([one.prepared for one in writing])
            except Fenced as error:
                self._depose(error)
            except StoreUnavailable as error:  # perhaps written
                for one in writing:
                    self._again_later(one.plan.group, error)
                ready = [one for one in ready if not one.prepared.units]
            except Exception as error:  # noqa: BLE001  whosever trouble it is, it is met again when each is written
                log.debug("writing groups=%d one by one reason=%r", len(writing), error)
        written = {one.plan.group: done for one, done in zip(writing, found or (), strict=False)}
        return [(one, written.get(one.plan.group)) for one in ready]

    def perhaps_paused(self) -> set[str]:
        """The groups last found paused, and those that are being looked at now. For any thread."""
        at = self._looking_at
        found = {group for group, outcome in list(self.outcomes.items()) if outcome.state is GroupState.PAUSED}
        return found | at

    def _look(self, groups: Sequence[str]) -> dict[str, Snapshot | StoreError | None]:
        glances = []
        for group in groups:
            requests = self._requests.of_group(group)
            glance = GroupQuery(
                group,
                self._catalog.topics,
                requests,
                self._timers.setdefault(group, GroupTimers()),
                self._decoded.setdefault(group, Decoded()),
                with_history=bool(requests) and not self._decisions.knows(group),
                with_zxids=self.resting.wants_zxids(group),
            )
            glances.append(glance)
        found = observe(self._store, glances, epoch=self._leading.epoch, options=self._options)
        return dict(zip(groups, found, strict=True))

    def _look_at_each(self, groups: Sequence[str]) -> dict[str, Snapshot | Exception | None]:
        """One by one, so that what no reader expected of one group is no trouble of the others."""
        found: dict[str, Snapshot | Exception | None] = {}
        for group in groups:
            try:
                found |= self._look([group])
            except Exception as error:  # noqa: BLE001  raised again, and logged, where this group is handled
                found[group] = error
        return found

    def _decide(self, group: str, look: Snapshot | Exception | None) -> _Decided | None:
        """What is to be written; ``None`` where there is nothing to be decided yet, or any more."""
        self.passes += 1
        if isinstance(look, Exception):
            raise look
        if look is None:
            self._gone(group)
            return None
        observation = look.observation
        new_interests = self._registry.update(group, observation.members.values())
        if new_interests and observation.topics is not self._catalog.topics:
            self._queue.request(group)  # a topic's listener did not know yet that it concerns this group
        mended = self._mending.units(look)
        if mended:
            self._leading.executor.write(mended)
            self._queue.request(group)
            return None
        if not self._matching.done(group, observation, self._store.clock):
            self._queue.request(group)
            return None
        if look.history is not None:
            self._decisions.remember(group, look.history)
        decided = decide(self._store, observation, self._assignors)
        after = self._decisions.observe(decided.plan, observation)
        prepared = Prepared()
        if decided.plan.steps or after:
            prepared = self._leading.executor.prepare(decided, look.missing, after)
        return _Decided(decided.plan, replace(look, observation=decided.observation), prepared)

    def _finish(self, decided: _Decided, written: Written) -> None:
        plan, look, group = decided.plan, decided.look, decided.plan.group
        self._mending.remember(look, plan if written.units else None)
        self._settle(plan, look.observation)
        self._arm(group, look.observation, written)
        if plan.steps:
            self.resting.mark_active(group)
        elif (again := self.resting.looked(look, plan)) is not None:
            self._queue.request_at(group, again)
        self._schedule(decided, self._timers[group], written)

    def _settle(self, decided: Plan, observation: Observation) -> None:
        """Remembers and says what was decided."""
        for step in decided.steps:
            if isinstance(step, AnswerRequest):
                self._requests.answered(replace(step.request, result=step.result, message=step.message))
        group = decided.group
        # names and reasons in it are what somebody wrote: one line, however long and broken they are
        outcome = Outcome(decided.state, cut(" ".join(decided.summary.split()), MAX_SUMMARY_CHARS))
        changed = self.outcomes.get(group) != outcome
        self.outcomes[group] = outcome
        at_rest = decided.state in AT_REST and not observation.unreadable
        level = logging.INFO if decided.steps or not at_rest else logging.DEBUG
        if changed or decided.steps:
            log.log(level, "%s group=%s state=%s", outcome.summary, group, decided.state)
        found = frozenset(observation.unreadable)
        report("left alone unreadable", found - self._reported.get(group, frozenset()))
        self._reported[group] = found

    def _arm(self, group: str, observation: Observation, written: Written) -> None:
        """Watches for the deletion of every outstanding command that is not watched yet."""
        outstanding = [
            layout.command(group, consumer, command.name)
            for consumer, channel in observation.channels.items()
            if consumer in observation.members
            for command in channel.commands
        ]
        if not outstanding and not written.commands:
            self._armed.pop(group, None)
            return
        armed = self._armed.setdefault(group, set())
        wanted = [path for path in (*outstanding, *written.commands) if path not in armed]
        if not wanted:
            return

        def fired(event: WatchEvent) -> None:
            armed.discard(event.path)
            if armed and event.type is WatchType.DELETED:  # others are about to come: one look for all
                self._queue.request_at(group, self._store.clock.monotonic() + GATHER_S, event=True)
            else:
                self._queue.request(group)

        armed.update(wanted)
        try:
            self._store.watch_gone(wanted, fired)
        except StoreError:
            armed.difference_update(wanted)
            raise

    def _schedule(self, looked: _Decided, timers: GroupTimers, written: Written) -> None:
        decided, group = looked.plan, looked.plan.group
        now = self._store.clock.monotonic()
        if decided.steps:
            if written.commands or decided.state in AT_REST:
                # the next event is the first acknowledgement, or somebody else's: until then there is nothing to see
                self._queue.request_at(group, now + LOOK_AGAIN_S)
            else:
                self._queue.request(group)
        if timers.next_due is not None:
            self.resting.due(group, timers.next_due)
            self._queue.request_at(group, timers.next_due)
        self._queue.request_at(group, self._interval_end(group, BLOCKED_LOOK_PART if looked.plan.blocked else 1.0))

    def _interval_end(self, group: str, part: float = 1.0) -> float:
        """When it is looked at if nothing happens to it."""
        return self._store.clock.monotonic() + part * self._options.look_interval_ms * spread(group) / 1000

    def _again_later(self, group: str, error: StoreError | None) -> None:
        """What was written is consistent by itself; what was not is decided anew from a fresh look."""
        self._decisions.invalidate(group)
        if isinstance(error, MultiFailed):
            log.debug("looking again group=%s: changed meanwhile (%s)", group, error)
            self._clear_the_way(group, error)
        self.failed_passes += 1
        failures = self._failures[group] = self._failures.get(group, 0) + 1
        if isinstance(error, MultiFailed) and failures <= 3:
            self._queue.request(group)
            return
        backoff_ms = min(
            self._options.retry_backoff_max_ms, self._options.retry_backoff_ms * 2 ** min(failures - 1, 16)
        )
        if isinstance(error, StoreUnavailable):
            log.info("looking again in %d ms group=%s: ZooKeeper did not answer (%s)", backoff_ms, group, error)
        elif error is not None:
            log.warning("looking again in %d ms group=%s: %s", backoff_ms, group, error)
        self._queue.request_at(group, self._store.clock.monotonic() + backoff_ms / 1000)

    def _clear_the_way(self, group: str, error: MultiFailed) -> None:
        """What no look can see and would make every pass fail in the same way."""
        if isinstance(error.cause, NoAuth) and error.path.startswith(f"{layout.REQUESTS}/"):
            self._requests.set_aside(error.path)
        below = error.path.removeprefix(layout.group(group) + "/").split("/")
        if isinstance(error.cause, NotEmpty) and (below[0], len(below)) in _LEAVES:
            log.warning("removing what somebody made below path=%s: nothing belongs there", error.path)
            try:
                self._leading.executor.clear_below(error.path)
            except Fenced as fenced:
                self._depose(fenced)
            except StoreError as failure:
                log.warning("could not remove what is below path=%s: %s", error.path, failure)

    def _gone(self, group: str) -> None:
        """The group does not exist (any more); a request about it is answered all the same."""
        requests = self._requests.of_group(group)
        if requests:
            nothing = Observation(group, self._leading.epoch, {}, {}, {}, None, {}, GroupSettings())
            steps = tuple(AnswerRequest(r, "refused", f"there is no group {group}") for r in requests)
            decided = Plan(group, GroupState.DEAD, f"refused {len(steps)} requests: no such group", steps)
            executor = self._leading.executor
            executor.write_prepared(executor.prepare(Decided(decided, nothing)))
            self._settle(decided, nothing)
        self._registry.drop(group)
        self._decisions.forget(group)
        self._mending.forget(group)
        self._matching.forget(group)
        self.resting.forget(group)
        for memory in (self._armed, self._timers, self._decoded, self._failures, self._reported, self.outcomes):
            memory.pop(group, None)
