"""Logs the outcome of each pass over a group, unreadable znodes, and groups that do not settle. Counts rebalances."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

from kafka_coord.coordinator.memory import GroupMemory, Outcome, Unsettled
from kafka_coord.coordinator.plan.reasons import counted, cut, names
from kafka_coord.coordinator.plan.target import unread_topics
from kafka_coord.coordinator.steps import AT_REST, GroupState, Plan, SetTarget
from kafka_coord.coordinator.tolerant_reads import report
from kafka_coord.model import Cause, Decision, Observation, PartitionSet
from kafka_coord.model.sequences import Durations

log = logging.getLogger(__name__)

MAX_SUMMARY_CHARS = 2_000
UNSETTLED_AFTER_S = 30.0
"""How long a group may take to reach its target before a warning is logged, in seconds. Longer than most session
timeouts."""
SAY_AGAIN_S = 60.0
"""How often the warning about an unsettled group is repeated, in seconds."""


@dataclass(frozen=True, slots=True)
class StuckGroup:
    """A group that has not reached its target within :data:`UNSETTLED_AFTER_S`, and the reason. ``ownerless`` is the
    number of its partitions without an owner at the last warning. ``undecided`` is true if the group has no readable
    target or the last pass failed."""

    group: str
    for_s: float
    reason: str
    ownerless: int
    undecided: bool

    @property
    def is_loud(self) -> bool:
        """Whether an operator must act. Waiting for a slow consumer does not count: it is evicted automatically."""
        return self.undecided or self.ownerless > 0


def report_pass(memory: GroupMemory, plan: Plan, observation: Observation, now: float) -> None:
    """Remembers and logs the result of a pass. ``now`` is monotonic."""
    # Names and reasons come from users, so remove line breaks to keep the log entry on one line.
    outcome = Outcome(plan.state, cut(" ".join(plan.summary.split()), MAX_SUMMARY_CHARS))
    changed = memory.outcome != outcome
    memory.outcome = outcome
    at_rest = plan.state in AT_REST and not observation.unreadable
    level = logging.INFO if plan.steps or not at_rest else logging.DEBUG
    if changed or plan.steps:
        log.log(level, "%s group=%s state=%s", outcome.summary, memory.group, plan.state, extra=_event(plan))
    unreadable = frozenset(observation.unreadable)
    report("cannot read", unreadable - memory.unreadable)
    memory.unreadable = unreadable
    _report_unread(memory, observation)
    if plan.state is GroupState.REBALANCING:
        _report_unsettled(memory, outcome.summary, now, observation)
    else:
        memory.unsettled = None


def _report_unread(memory: GroupMemory, observation: Observation) -> None:
    """Tells once when a topic begins to have no member that may read it, and once when that ends."""
    unread = frozenset(unread_topics(observation, observation.members))
    begun, ended, memory.unread = unread - memory.unread, memory.unread - unread, unread
    if begun:
        log.warning(
            "no member may read topics=%s, so they have no owner group=%s",
            *(names(begun), memory.group),
            extra={"event": "topics_unread"},
        )
    if ended:
        log.warning(
            "members may read topics=%s again, or no member subscribes to them any more group=%s",
            *(names(ended), memory.group),
            extra={"event": "topics_read_again"},
        )


def _event(plan: Plan) -> dict[str, object]:
    """Returns the structured fields of the log entry."""
    for step in plan.steps:
        if isinstance(step, SetTarget):
            return {"event": "group_decided", "generation": step.assignment.generation, "causes": step.causes}
    return {"event": "group_state"}


def report_failure(memory: GroupMemory, error: Exception, now: float) -> None:
    """Remembers that a pass over the group failed, and repeats a warning while its passes keep failing."""
    _report_unsettled(
        memory, f"the last pass failed: {cut(' '.join(str(error).split()), MAX_SUMMARY_CHARS)}", now, None
    )


def stuck(memory: GroupMemory, now: float) -> StuckGroup | None:
    """Returns a report on the group if it is stuck, otherwise ``None``. Safe to call from any thread."""
    unsettled = memory.unsettled
    if unsettled is None or now - unsettled.since < UNSETTLED_AFTER_S:
        return None
    return StuckGroup(memory.group, now - unsettled.since, unsettled.reason, unsettled.ownerless, unsettled.undecided)


def say_again_at(memory: GroupMemory) -> float | None:
    """Returns the (monotonic) time at which another pass must log a warning that the group is unsettled, or ``None`` if
    it is settled."""
    unsettled = memory.unsettled
    if unsettled is None:
        return None
    if unsettled.logged_at is None:
        return unsettled.since + UNSETTLED_AFTER_S
    return unsettled.logged_at + SAY_AGAIN_S


def _report_unsettled(memory: GroupMemory, reason: str, now: float, observation: Observation | None) -> None:
    unsettled = memory.unsettled = memory.unsettled or Unsettled(now)
    unsettled.reason = reason
    unsettled.undecided = observation is None or observation.assignment is None
    due = say_again_at(memory)
    if due is None or now < due:
        return
    unsettled.logged_at = now
    if observation is not None:
        unsettled.ownerless = _ownerless(observation)
    log.warning(
        "group has not settled for %.0f s, %s without an owner group=%s: %s",
        now - unsettled.since,
        counted(unsettled.ownerless, "partition"),
        memory.group,
        reason,
        extra={"event": "group_stuck", "for_s": round(now - unsettled.since), "ownerless": unsettled.ownerless},
    )


def _ownerless(observation: Observation) -> int:
    """Returns the number of partitions in the target that have no owner."""
    if observation.assignment is None:
        return 0
    wanted = PartitionSet.union(observation.assignment.members.values())
    return len(wanted - PartitionSet.union(ledger.held for ledger in observation.ledgers.values()))


@dataclass(slots=True)
class Rebalances:
    """The counts since the election. ``settled`` records the time from each decision until every partition had its new
    owner, leaving out decisions that needed no commands."""

    decided: Counter[Cause] = field(default_factory=Counter)
    moved_partitions: int = 0
    settled: Durations = field(default_factory=Durations)

    def count(self, decision: Decision, *, is_new: bool) -> None:
        """Counts a written decision by its most important cause, or adds its duration once it has settled."""
        if is_new:
            self.decided[decision.causes[0]] += 1
            self.moved_partitions += decision.moved
        elif decision.settled_ms is not None:
            self.settled.add(decision.settled_ms / 1000)
