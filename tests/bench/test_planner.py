"""What the bench of the planner measures, and how it is judged. A test does not check times."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kafka_coord.coordinator.assignors import built_in_assignors
from kafka_coord.coordinator.plan import plan
from kafka_coord.coordinator.steps import SetTarget
from kafka_coord.dev.bench.planner import (
    SMOKE,
    STICKY,
    Case,
    Event,
    Subscribed,
    Timed,
    What,
    bars,
    group_at,
    observed,
    run_planner_bench,
    tables,
)
from tests.cli.running import run

ASSIGNORS = built_in_assignors()


def timed(members: int, *ms: float, what: What = What.DECIDE, event: Event = Event.JOINS) -> Timed:
    return Timed(Case(what, STICKY, members, 50 * members, Subscribed.ALL_ONE, event), ms, 50)


@pytest.mark.parametrize("subscribed", Subscribed)
def test_the_groups_are_what_the_event_makes_of_an_assigned_one(subscribed: Subscribed):
    first, joins, leaves, grows = (group_at(event, ASSIGNORS[STICKY], 40, 400, subscribed)[0] for event in Event)
    assert not first.current
    assert sum(len(topic.partitions) for topic in first.topics.values()) == 400
    assert len(joins.members) == 41
    assert len(joins.current) == 40
    assert len(leaves.members) == len(leaves.current) == 39
    assert sum(len(topic.partitions) for topic in grows.topics.values()) >= 440
    held = sum(map(len, grows.current.values()))
    assert held == len({partition for owned in grows.current.values() for partition in owned})
    subscribed_to = {len(topics) for topics in joins.subscriptions.values()}
    assert subscribed_to == {{Subscribed.ALL_ONE: 1, Subscribed.ALL_MANY: 100, Subscribed.MIXED: 5}[subscribed]}


@pytest.mark.parametrize("event", Event)
def test_the_decision_that_is_timed_is_one_about_this_event(event: Event):
    inputs, before = group_at(event, ASSIGNORS[STICKY], 40, 400, Subscribed.ALL_ONE)
    decided = plan(observed(inputs, before), ASSIGNORS)
    (target,) = [step.assignment for step in decided.steps if isinstance(step, SetTarget)]
    assert target.members == ASSIGNORS[STICKY].assign(inputs).members
    word = {Event.FIRST: "joined", Event.JOINS: "joined", Event.LEAVES: "expired", Event.GROWS: "grew"}[event]
    assert word in target.reason


def test_every_case_is_in_the_report_once_and_sticky_moves_no_more_than_it_must():
    report = run_planner_bench(SMOKE, lambda _: None)
    rows = report.tables[0].rows
    cases = {tuple(row[name] for name in ("what", "assignor", "members", "subscribed", "event")) for row in rows}
    assert len(cases) == len(rows) == len(SMOKE.sizes) * len(Subscribed) * len(Event) * (len(ASSIGNORS) + 1)
    (joined,) = [
        row
        for row in rows
        if row["event"] == "joins" and row["assignor"] == STICKY and row["members"] == 40 and row["what"] == "decide"
        if row["subscribed"] == "one topic"
    ]
    assert joined["moved"] == 200 // 41
    assert not report.bars, "a smoke is not judged"


def found(bars: Sequence[object]) -> list[bool | None]:
    return [bar.met for bar in bars]  # type: ignore[attr-defined]


def test_the_slowest_case_decides_whether_a_bar_is_met():
    fast = [timed(1_000, 40, 50, 60), timed(2_500, 200), timed(5_000, 450)]
    assert found(bars(fast)) == [True, True, True, None]
    slow = [*fast, timed(1_000, 20, 101, 102, what=What.ASSIGN)]
    assert found(bars(slow)) == [False, True, True, None]
    assert found(bars([timed(2_500, 200), timed(5_000, 470)])) == [None, True, False, None]
    alone = [
        timed(1_250, 20, what=What.ASSIGN),
        timed(2_500, 45, what=What.ASSIGN),
        timed(5_000, 110, what=What.ASSIGN),
    ]
    assert found(bars(alone)) == [None, True, None, False]
    assert found(bars([timed(1_000, 500, event=Event.FIRST)])) == [None, None, None, None]


def test_growth_is_reported_for_pairs_of_sizes_of_which_one_is_twice_the_other():
    (row,) = tables([timed(100, 10), timed(150, 11), timed(200, 25)])[1].rows
    assert row["members"] == "100 to 200"
    assert row["times_as_long"] == 2.5


def test_the_command_prints_one_json_object():
    found = run("bench", "planner", "--size", "30x4", "--assignor", "range", "--repeat", "1", "-o", "json").json()
    assert {row["assignor"] for row in found["planner"]} == {"range"}
    assert {row["partitions"] for row in found["planner"]} == {120}
    assert found["setup"]["python"]


@pytest.mark.parametrize("size", ["", "x", "10", "0x5", "5x0", "-1x5", "1000000x1", "²x3"])
def test_an_invalid_size_is_refused(size: str):
    assert "is not MEMBERSxEACH" in run("bench", "planner", "--size", size).err
