"""Measures each assignor alone and whole decisions, for groups of growing size. Needs no server."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

from kafka_coord.coordinator.assignors import AssignmentInputs, Assignor, built_in_assignors
from kafka_coord.coordinator.plan import plan
from kafka_coord.coordinator.service import collecting_rarely
from kafka_coord.dev.bench.report import Bar, BenchOptions, BenchReport, Drawing, Setup, Spread, Table
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.model import Assignment, Ledger, Member, Observation, PartitionSet, Subscription, TopicInfo

STICKY = "sticky"
_TOPICS = 100
_MIXED = 5
_GROUP = "bench"
_JOINER = "c99999"  # sorts last, so an assignor that works in name order handles all others first
_BAR_MEMBERS, _BAR_MOST_MEMBERS, _BAR_EACH = 1_000, 5_000, 50
_BAR_MS, _BAR_MOST_MS, _BAR_GROWTH = 100.0, 1_000.0, 2.3


class Event(StrEnum):
    """The event to which the assignor reacts."""

    FIRST = "first"
    """Nobody owns anything yet."""
    JOINS = "joins"
    LEAVES = "leaves"
    GROWS = "grows"
    """Every topic gets a tenth more partitions."""


class Subscribed(StrEnum):
    ALL_ONE = "one topic"
    ALL_MANY = "100 topics, all of them"
    MIXED = "100 topics, five each"


class What(StrEnum):
    ASSIGN = "assign"
    """The assignor alone."""
    DECIDE = "decide"
    """The coordinator's whole decision, from a snapshot of the group to the planned steps."""


@dataclass(frozen=True, slots=True)
class PlannerOptions(BenchOptions):
    """``sizes`` lists (members, partitions per member). Each case is timed ``repeat`` times, after one run that does
    not count.
    """

    sizes: tuple[tuple[int, int], ...] = ((100, 50), (1_000, 10), (1_000, 50), (2_500, 50), (5_000, 50))
    assignors: tuple[str, ...] = ()
    repeat: int = 5


SMOKE = PlannerOptions(sizes=((20, 5), (40, 5)), repeat=2, judged=False)


@dataclass(frozen=True, slots=True)
class Case:
    what: What
    assignor: str
    members: int
    partitions: int
    subscribed: Subscribed
    event: Event


@dataclass(frozen=True, slots=True)
class Timed:
    """``ms`` is the CPU time of each run. ``moved`` counts the partitions that get a new owner."""

    case: Case
    ms: Sequence[float]
    moved: int


def run_planner_bench(options: PlannerOptions, on_progress: OnProgress) -> BenchReport:
    """Runs the benchmark. Times are CPU milliseconds of one thread, so other processes on the machine do not count.
    Python's garbage collector has the same settings as in a coordinator."""
    setup = Setup.here()
    found: list[Timed] = []
    with collecting_rarely():
        for one in timed(options):
            found.append(one)
            on_progress(f"{_told(one.case)}: {Spread.some(one.ms).median:,.1f} ms")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    notes = [f"peak memory: {peak:,.0f} MiB, including the groups themselves"]
    given = replace(options, assignors=options.assignors or tuple(sorted(built_in_assignors())))
    return BenchReport.of("planner", setup, given, tables(found), bars(found), notes)


def timed(options: PlannerOptions) -> Iterator[Timed]:
    """Yields every case, small groups first."""
    known = built_in_assignors()
    for members, each in options.sizes:
        for subscribed in Subscribed:
            for name in options.assignors or sorted(known):
                for event in Event:
                    inputs, before = group_at(event, known[name], members, members * each, subscribed)
                    target = known[name].assign(inputs)  # also warms up
                    moved = sum(len(owned - inputs.current_of(consumer)) for consumer, owned in target.members.items())
                    case = Case(What.ASSIGN, name, members, members * each, subscribed, event)
                    yield Timed(case, _times(partial(known[name].assign, inputs), options.repeat), moved)
                    if name == STICKY:
                        decide = partial(plan, observed(inputs, before), known)
                        decide()
                        yield Timed(replace(case, what=What.DECIDE), _times(decide, options.repeat), moved)


def _times(call: Callable[[], object], repeat: int) -> list[float]:
    found = []
    for _ in range(repeat):
        began = time.process_time()
        call()
        found.append((time.process_time() - began) * 1000)
    return found


# --- groups ----------------------------------------------------------------------------------------------------------


def group_at(
    event: Event, assignor: Assignor, members: int, partitions: int, subscribed: Subscribed
) -> tuple[AssignmentInputs, Mapping[str, PartitionSet]]:
    """Returns a group just after the event, with the assignment that the assignor computed before the event."""
    before = {f"c{number:05}" for number in range(members)}
    counts = _topics(partitions, subscribed)
    after, grown = set(before), counts
    if event is Event.JOINS:
        after.add(_JOINER)
    elif event is Event.LEAVES:
        after.discard(f"c{members // 2:05}")
    elif event is Event.GROWS:
        grown = {topic: count + -(-count // 10) for topic, count in counts.items()}
    chosen = _subscriptions(sorted(before | after), counts, subscribed)
    if event is Event.FIRST:
        return _inputs(after, chosen, grown, {}), {}
    owned = assignor.assign(_inputs(before, chosen, counts, {})).members
    kept = {consumer: owned[consumer] for consumer in sorted(after & before)}
    return _inputs(after, chosen, grown, kept), owned


def _topics(partitions: int, subscribed: Subscribed) -> dict[str, int]:
    topics = 1 if subscribed is Subscribed.ALL_ONE else _TOPICS
    share, rest = divmod(partitions, topics)
    return {f"t{number:03}": share + (number < rest) for number in range(topics) if share or number < rest}


def _subscriptions(
    consumers: Sequence[str], topics: Mapping[str, int], subscribed: Subscribed
) -> dict[str, tuple[str, ...]]:
    names = tuple(sorted(topics))
    if subscribed is not Subscribed.MIXED:
        return dict.fromkeys(consumers, names)
    pick = random.Random(len(consumers))  # noqa: S311  the same groups every time
    return {consumer: tuple(sorted(pick.sample(names, min(_MIXED, len(names))))) for consumer in consumers}


def _inputs(
    consumers: set[str],
    chosen: Mapping[str, tuple[str, ...]],
    counts: Mapping[str, int],
    current: Mapping[str, PartitionSet],
) -> AssignmentInputs:
    ordered = sorted(consumers)
    made = {topics: Subscription.to(topics) for topics in dict.fromkeys(chosen[one] for one in ordered)}
    members = {one: Member(one, number, made[chosen[one]]) for number, one in enumerate(ordered, 1)}
    topics = {name: TopicInfo(name, frozenset(range(count)), f"id-{name}") for name, count in counts.items()}
    return AssignmentInputs(members, topics, {consumer: chosen[consumer] for consumer in members}, current)


def observed(inputs: AssignmentInputs, before: Mapping[str, PartitionSet]) -> Observation:
    """Returns the coordinator's observation of the group, in which each member holds its partitions in ``before``."""
    ledgers = {
        consumer: Ledger(
            consumer,
            inputs.members[consumer].incarnation if consumer in inputs.members else len(before) + 1,
            owned=owned,
            generation=1,
            topic_ids={topic: inputs.topics[topic].identity for topic, _ in owned.by_topic()},
            znode_version=1,
        )
        for consumer, owned in before.items()
    }
    assignment = Assignment(1, 1, "of before", STICKY, "before", before, znode_version=1) if before else None
    return Observation(
        group=_GROUP,
        epoch=1,
        members=inputs.members,
        ledgers=ledgers,
        channels={},
        assignment=assignment,
        topics=inputs.topics,
    )


# --- results ---------------------------------------------------------------------------------------------------------


def tables(found: Sequence[Timed]) -> list[Table]:
    rows = []
    for one in found:
        spread = Spread.some(one.ms)
        rows.append(
            {
                "what": str(one.case.what),
                "assignor": one.case.assignor,
                "members": one.case.members,
                "partitions": one.case.partitions,
                "subscribed": str(one.case.subscribed),
                "event": str(one.case.event),
                "median_ms": round(spread.median, 2),
                "p99_ms": round(spread.p99, 2),
                "moved": one.moved,
            }
        )
    labels = ("event", "what", "assignor", "members", "subscribed")
    return [Table("planner", rows, [Drawing(labels, "median_ms", "p99_ms")]), Table("growth", _growth(found))]


def _growth(found: Sequence[Timed]) -> list[dict[str, Any]]:
    """For each case that was also measured at twice its size, returns the ratio of the two times."""
    by_case = {one.case: Spread.some(one.ms).median for one in found}
    rows = []
    for case, ms in by_case.items():
        twice = replace(case, members=2 * case.members, partitions=2 * case.partitions)
        if twice in by_case:
            rows.append(
                {
                    "what": str(case.what),
                    "assignor": case.assignor,
                    "members": f"{case.members} to {twice.members}",
                    "subscribed": str(case.subscribed),
                    "event": str(case.event),
                    "times_as_long": round(by_case[twice] / ms, 2) if ms else None,
                }
            )
    return rows


def bars(found: Sequence[Timed]) -> list[Bar]:
    """Returns the targets, which apply to joins with ``sticky`` and all kinds of subscriptions."""
    joins = [one for one in found if one.case.assignor == STICKY and one.case.event is Event.JOINS]

    def worst(members: int) -> float | None:
        ms = [
            Spread.some(one.ms).median
            for one in joins
            if one.case.members == members and one.case.partitions == members * _BAR_EACH
        ]
        return max(ms, default=None)

    def growth(what: What) -> float | None:
        rows = _growth([one for one in joins if one.case.what is what])
        return max((row["times_as_long"] for row in rows if row["times_as_long"] is not None), default=None)

    return [
        Bar.at_most(f"a join, {_BAR_MEMBERS:,} members x {_BAR_EACH}", _BAR_MS, worst(_BAR_MEMBERS), " ms"),
        Bar.at_most(
            f"a join, {_BAR_MOST_MEMBERS:,} members x {_BAR_EACH}", _BAR_MOST_MS, worst(_BAR_MOST_MEMBERS), " ms"
        ),
        Bar.at_most(
            "a join, with the group doubled: the whole decision", _BAR_GROWTH, growth(What.DECIDE), " times as long"
        ),
        Bar.at_most(
            "a join, with the group doubled: the assignor alone", _BAR_GROWTH, growth(What.ASSIGN), " times as long"
        ),
    ]


def _told(case: Case) -> str:
    size = f"{case.members:,} members and {case.partitions:,} partitions"
    return f"{case.what}, {case.assignor}, {size}, {case.subscribed}, {case.event}"
