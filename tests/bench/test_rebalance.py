"""Figures from members' journals: gaps, moves, needless interruptions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kafka_coord.dev.bench.rebalance.figures import Cost, Event, Owners, cost, summary
from kafka_coord.dev.bench.rebalance.journal import Journals, Line, What
from kafka_coord.dev.bench.rebalance.run import SMOKE, RebalanceOptions, bars
from kafka_coord.model import PartitionSet
from tests.cli.running import run

MS = 1_000_000


def line(at_ms: float, consumer: str, what: What, partitions: str = "") -> Line:
    written = {"flights": partitions} if partitions else {}
    return Line(round(at_ms * MS), consumer, what, PartitionSet.from_json(written, "here"))


def owned(**by_consumer: str) -> Owners:
    return {
        partition: consumer
        for consumer, partitions in by_consumer.items()
        for partition in PartitionSet.from_json({"flights": partitions}, "here")
    }


def test_a_moved_partition_has_no_owner_from_its_stop_to_its_start():
    lines = [
        line(100, "c2", What.JOINING),
        line(110, "c1", What.STOPPED, "2-3"),
        line(114, "c1", What.ACKNOWLEDGED, "2-3"),
        line(121, "c2", What.STARTED, "2-3"),
        line(125, "c2", What.ACKNOWLEDGED),
    ]
    found, after = cost(Event.JOIN, 100 * MS, lines, owned(c1="0-3"))
    assert found == Cost(Event.JOIN, 25.0, (11.0, 11.0), 2, 0, 0, 0)
    assert found.partition_seconds == 0.022
    assert after == owned(c1="0-1", c2="2-3")


def test_a_partition_that_stops_and_starts_at_the_same_owner_was_interrupted_needlessly():
    lines = [line(5, "c1", What.STOPPED, "0-1"), line(9, "c1", What.STARTED, "0")]
    found, after = cost(Event.REBALANCE, 0, lines, owned(c1="0-3"), answered_ns=12 * MS)
    assert (found.interrupted_not_moved, found.moved, found.left) == (1, 0, 1)
    assert found.settle_ms == 12
    assert after == owned(c1="0,2-3")


def test_the_partitions_of_a_killed_member_have_no_owner_from_then_on():
    lines = [line(6_050, "c1", What.STARTED, "2-3"), line(6_055, "c1", What.ACKNOWLEDGED)]
    found, after = cost(Event.KILL, 50 * MS, lines, owned(c1="0-1", c2="2-3"), killed="c2")
    assert found == Cost(Event.KILL, 6_005.0, (6_000.0, 6_000.0), 2, 0, 0, 0)
    assert after == owned(c1="0-3")


def test_new_partitions_count_from_the_event_on():
    lines = [line(30, "c2", What.STARTED, "4"), line(32, "c2", What.ACKNOWLEDGED)]
    found, after = cost(Event.GROW, 10 * MS, lines, owned(c1="0-1", c2="2-3"))
    assert found == Cost(Event.GROW, 22.0, (20.0,), 0, 1, 0, 0)
    assert len(after) == 5


def test_a_stop_of_a_partition_that_another_member_owns_already_changes_nothing():
    lines = [line(3, "c1", What.STARTED, "0"), line(4, "gone", What.STOPPED, "0")]
    _, after = cost(Event.COLD, 0, lines, {})
    assert after == owned(c1="0")


def test_a_summary_pools_the_gaps_and_counts_violations():
    made = [
        Cost(Event.JOIN, settle, gaps, 2, 0, needless, 0)
        for settle, gaps, needless in [(40, (5.0, 9.0), 0), (60, (7.0,), 1)]
    ]
    found = summary(made)
    assert found["settle_ms"] == {"p50": 50, "p99": 60, "max": 60}
    assert found["gap_ms"] == {"p50": 7.0, "p99": 9.0, "max": 9.0}
    assert found["longest_gap_ms"] == {"p50": 8.0, "p99": 9.0, "max": 9.0}
    assert found["partition_seconds"] == pytest.approx(0.0105, abs=0.001)
    assert found["interrupted_not_moved"] == 1


def test_journals_are_read_on_from_where_they_were_and_never_half_a_line(tmp_path: Path):
    one, two = line(2, "c1", What.STARTED, "0-1"), line(1, "c2", What.JOINING)
    (tmp_path / "a.journal").write_bytes(one.encoded())
    (tmp_path / "b.journal").write_bytes(two.encoded() + one.encoded()[:3])
    journals = Journals(tmp_path)
    assert journals.new_lines() == [two, one]
    assert journals.new_lines() == []
    with (tmp_path / "b.journal").open("ab") as file:
        file.write(one.encoded()[3:])
    assert [found.consumer for found in journals.new_lines()] == ["c1"]


def judged(options: RebalanceOptions, **costs: list[Cost]) -> dict[str, bool | None]:
    every = {event: costs.get(event.name, []) for event in Event}
    return {bar.name: bar.met for bar in bars(every, options)}


def test_bars_hold_for_the_sizes_they_are_about():
    fast = [Cost(Event.JOIN, ms, (20.0,), 90, 0, 0, 0) for ms in (50.0, 60.0, 140.0)]
    assert judged(RebalanceOptions(), JOIN=fast) == {
        "join: settled": True,
        "join: longest gap": True,
        "interrupted without moving": True,
    }
    slow = [*fast, Cost(Event.JOIN, 151.0, (51.0,), 90, 0, 1, 0)]
    assert set(judged(RebalanceOptions(), JOIN=slow).values()) == {False}
    assert judged(RebalanceOptions(members=7), JOIN=slow) == {"interrupted without moving": False}
    beside = [replace(one, settle_ms=one.settle_ms * 1.05) for one in fast]
    assert judged(RebalanceOptions(), JOIN=fast, STUCK=beside)["a stuck group beside it"] is True
    beside = [replace(one, settle_ms=one.settle_ms * 1.06) for one in fast]
    assert judged(RebalanceOptions(), JOIN=fast, STUCK=beside)["a stuck group beside it"] is False
    killed = [Cost(Event.KILL, ms, (), 90, 0, 0, 0) for ms in (6_100.0, 6_151.0)]
    assert judged(RebalanceOptions(), KILL=killed)["member killed: settled"] is False


@pytest.mark.zookeeper
@pytest.mark.parametrize("channel", ["zk", "socket"])
def test_a_small_run_lets_every_event_happen_and_nothing_is_interrupted_needlessly(tmp_path: Path, channel: str):
    found = run("bench", "rebalance", "--smoke", "--channel", channel, "--dir", str(tmp_path), "-o", "json").json()
    assert found["settings"]["channel"] == channel
    assert set(found["events"]) == {str(event) for event in Event}
    for event, one in found["events"].items():
        assert one["interrupted_not_moved"] == one["without_owner"] == 0, event
        assert one["settle_ms"]["p50"] > 0, event
    events = found["events"]
    assert events["join"]["n"] == events["leave"]["n"] == SMOKE.repeat
    assert 6 <= events["join"]["moved"] <= 8, "the fourth member's share of 30"
    assert events["partitions +10 %"]["new"] == 3
    assert events["member killed"]["settle_ms"]["p50"] >= SMOKE.session_timeout_ms * 0.5
    assert events["cold start"]["new"] == 30
    assert found["setup"]["versions"]["java"]
