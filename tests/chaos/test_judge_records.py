"""Tests the judge's findings about records. The tests break each rule on purpose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.journal import Group, Kind, Participant
from tests.chaos.judge.findings import EVENT_RULES, RULES_OF_SOME, Rule, Severity, Status
from tests.chaos.night import T0, T1, Night, broken, of, violations


def test_a_clean_night_holds_every_rule_and_exercises_all(night: Night) -> None:
    report = night.judged()
    assert report.held
    assert {ruling.rule: ruling.status for ruling in report.rulings} == dict.fromkeys(
        set(Rule) - EVENT_RULES - RULES_OF_SOME, Status.HELD
    )
    assert all(not ruling.findings for ruling in report.rulings)
    assert of(report, Rule.NOTHING_MISSING).figures == {"acknowledged": 220, "given": 220, "repeats": 30}


def test_an_acknowledged_record_that_no_consumer_received_is_reported(night: Night) -> None:
    night.forget("c2.12 handed t-1 50")
    night.handed(12, "c2.12", T1, 50, 90)
    report = night.judged()
    (found,) = violations(report, Rule.NOTHING_MISSING)
    assert "10 acknowledged records were not handed out: offsets 90…99" in found.message
    assert found.where == "group g t-1"
    assert any("c2.12.jsonl" in str(evidence) for evidence in found.evidence)


def test_each_group_must_receive_every_record(night: Night) -> None:
    report = night.judged(group=Group("others", pattern="t|u"))
    assert {found.where for found in violations(report, Rule.NOTHING_MISSING)} == {
        "group others t-0",
        "group others t-1",
    }


def test_an_unacknowledged_record_may_be_handed_out(night: Night) -> None:
    night.handed(114, "c2.12", T0, 120, 130)
    assert night.judged().held


def test_records_of_a_topic_that_no_group_reads_are_not_missing(night: Night) -> None:
    night.produced(3, T0._replace(topic="elsewhere"), 0, 10)
    assert night.judged().held


def test_a_group_that_begins_at_the_end_must_receive_only_later_records(night: Night) -> None:
    night.forget("c1.11 started t-0 t-1", "c1.11 handed t-0 0", "c1.11 handed t-1 0")
    night.started(2, "c1.11", {T0: 50, T1: 50})
    assert night.judged(group=Group("g", topics=("t",), latest=True)).held


def test_a_record_that_differs_from_the_written_one_is_reported(night: Night) -> None:
    night.forget("c2.12 handed t-1 50")
    night.handed(12, "c2.12", T1, 50, 100, shift=3)
    (found,) = violations(night.judged(), Rule.NOTHING_MISSING)
    assert "53" in found.message


def test_an_owner_that_reads_after_the_next_owners_start_is_reported(night: Night) -> None:
    night.handed(11, "c1.11", T1, 50, 60)
    report = night.judged()
    (found,) = violations(report, Rule.ONE_OWNER)
    assert "c1 (pid 11) handed out 10 records" in found.message
    assert "after the start of c2 (pid 12)" in found.message
    assert [evidence.at_s for evidence in found.evidence] == sorted(evidence.at_s for evidence in found.evidence)


def test_a_call_in_progress_at_the_next_owners_start_is_not_reported(night: Night) -> None:
    """The process is frozen during the call, after the call has taken the records."""
    night.forget("c1.11 stopped t-1", "c1.11 committed t-1=50", "c2.12 started t-1", "c2.12 handed t-1 50")
    night.event(9, Kind.EXPIRE, "consumer:c1")
    night.started(10.05, "c2.12", {T1: 50})
    night.handed(11.5, "c1.11", T1, 50, 60, took=4.0)
    night.lost(11.6, "c1.11", T0, T1)
    night.started(11.7, "c1.11", {T0: 50})
    night.handed(12, "c2.12", T1, 50, 100)
    report = night.judged()
    assert of(report, Rule.ONE_OWNER).figures["calls_under_way"] == 1
    assert of(report, Rule.ONE_OWNER).status is Status.HELD
    assert Rule.REPEATS not in broken(report)


def test_an_evicted_consumer_that_reads_until_it_learns_of_the_eviction_is_an_exception(night: Night) -> None:
    night.forget("c1.11 stopped t-1", "c1.11 committed t-1=50")
    night.event(9.9, Kind.EVICT, "consumer:c1", group="g", consumer="c1")
    night.handed(10.5, "c1.11", T1, 50, 60)
    night.lost(10.6, "c1.11", T0, T1)
    night.started(11, "c1.11", {T0: 50})
    report = night.judged()
    assert report.held
    (found,) = of(report, Rule.ONE_OWNER).findings
    assert found.severity is Severity.EXCEPTION
    assert "evicted" in found.message


def test_an_evicted_consumer_that_never_stops_is_no_exception(night: Night) -> None:
    night.forget("c1.11 stopped t-1", "c1.11 committed t-1=50")
    night.event(9.9, Kind.EVICT, "consumer:c1", group="g", consumer="c1")
    night.event(80, Kind.KILL, "consumer:c1", pid=11)
    night.handed(75, "c1.11", T1, 50, 60)
    assert violations(night.judged(), Rule.ONE_OWNER)


def test_records_of_a_partition_that_the_consumer_never_owned_are_reported(night: Night) -> None:
    night.handed(100, "c1.13", T0, 100, 101)
    (found,) = violations(night.judged(), Rule.ONE_OWNER)
    assert "a partition that it never owned" in found.message


def test_records_after_a_stop_are_reported_even_without_a_next_owner(night: Night) -> None:
    night.forget("c2.12 started t-1", "c2.12 handed t-1 50")
    night.handed(10.5, "c1.11", T1, 50, 60)
    report = night.judged()
    assert any("after it had given it up" in found.message for found in violations(report, Rule.ONE_OWNER))


def test_repeated_records_after_a_clean_stop_are_reported(night: Night) -> None:
    night.forget("c2.12 started t-1", "c2.12 handed t-1 50", "c1.11 committed t-1=50")
    night.started(10.05, "c2.12", {T1: 40})
    night.handed(12, "c2.12", T1, 40, 100)
    report = night.judged()
    (found,) = violations(report, Rule.REPEATS)
    assert "c2 (pid 12) began at 40" in found.message
    assert "gave it up cleanly at 50" in found.message
    assert broken(report) == {Rule.REPEATS}


def test_repeated_records_from_before_the_last_commit_are_reported(night: Night) -> None:
    night.forget("c2.12 started t-0", "c2.12 handed t-0 50")
    night.started(26, "c2.12", {T0: 30})
    night.handed(27, "c2.12", T0, 30, 100)
    (found,) = violations(night.judged(), Rule.REPEATS)
    assert "had committed 50" in found.message


def test_repeated_records_after_an_operators_reset_are_allowed(night: Night) -> None:
    night.event(30.5, Kind.RESET, "group:g", group="g", offsets={"t": {"0": 10}})
    night.forget("c2.12 started t-0 t-1", "c2.12 handed t-0 100")
    night.started(31, "c2.12", {T0: 10, T1: 100})
    night.handed(113, "c2.12", T0, 10, 120)
    assert night.judged().held


def test_a_reset_of_one_partition_excuses_only_that_partition(night: Night) -> None:
    night.event(30.5, Kind.RESET, "group:g", group="g", offsets={"t": {"0": 10}})
    night.forget("c2.12 started t-0 t-1")
    night.started(31, "c2.12", {T0: 100, T1: 10})
    assert {found.where for found in violations(night.judged(), Rule.REPEATS)} == {"group g t-1"}


def test_a_gap_within_an_ownership_is_out_of_order(night: Night) -> None:
    night.forget("c1.11 handed t-0 50")
    night.handed(13, "c1.11", T0, 51, 80)
    (found,) = violations(night.judged(), Rule.ORDER)
    assert "skipped: offset 51 where 50 was due" in found.message


@pytest.mark.parametrize(
    ("kind", "first", "excused"), [("spark", 100, True), ("library", 100, False), ("spark", 101, False)]
)
def test_a_spark_query_may_begin_after_the_records_that_it_has_already_received(
    night: Night, kind: str, first: int, *, excused: bool
) -> None:
    night.run = replace(night.run, consumers=(Participant("c1", "g"), Participant("c2", "g", kind=kind)))
    night.forget("c2.12 committed t-0=100", "c2.12 started t-0 t-1", "c2.12 handed t-0 100")
    night.started(31, "c2.12", {T0: 90, T1: 100})  # 90 to 99 are processed, but not committed in the group
    night.handed(113, "c2.12", T0, first, 120)
    found = violations(night.judged(), Rule.ORDER)
    assert [f"skipped: offset {first} where 90 was due" in one.message for one in found] == [True] * (not excused)


def test_going_back_within_an_ownership_is_out_of_order(night: Night) -> None:
    night.forget("c1.11 handed t-0 50")
    night.handed(13, "c1.11", T0, 45, 80)
    (found,) = violations(night.judged(), Rule.ORDER)
    assert "went back: offset 45 where 50 was due" in found.message


def test_an_owner_that_begins_beyond_the_records_handed_out_is_reported(night: Night) -> None:
    night.forget("c2.12 started t-0", "c2.12 handed t-0 50")
    night.started(26, "c2.12", {T0: 90})
    night.handed(27, "c2.12", T0, 90, 100)
    report = night.judged()
    (found,) = violations(report, Rule.ORDER)
    assert "began at 90, although records were handed out only up to 80" in found.message
    assert broken(report) == {Rule.ORDER, Rule.NOTHING_MISSING}


def test_a_commit_below_an_earlier_one_is_out_of_order(night: Night) -> None:
    night.committed(113.7, "c2.12", {T0: 90})
    (found,) = violations(night.judged(), Rule.ORDER)
    assert "committed 90 after it had committed 120" in found.message


def test_a_commit_beyond_the_records_handed_out_is_out_of_order(night: Night) -> None:
    night.forget("c2.12 committed t-0=120")
    night.committed(113.5, "c2.12", {T0: 121})
    (found,) = violations(night.judged(), Rule.ORDER)
    assert "committed 121, although records were handed out only up to 120" in found.message
