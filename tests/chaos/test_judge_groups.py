"""Tests the judge's findings about groups and processes. The tests break each rule on purpose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.journal import Kind, Phase, Usage
from tests.chaos.judge.findings import EVENT_RULES, RULES_OF_SOME, Rule, Severity, Status
from tests.chaos.night import T0, T1, Night, broken, of, violations

LEAN = Usage(0, "serve:1", 77, 60 * 2**20, 20, 30, 5)


def test_a_group_that_is_never_settled_has_not_converged(night: Night) -> None:
    night.forget("settled group:g")
    night.event(109, Kind.SETTLED, "group:g")
    (found,) = violations(night.judged(), Rule.CONVERGENCE)
    assert found.where == "group g"
    assert "never after the last fault" in found.message


def test_a_group_that_is_settled_late_has_not_converged(night: Night) -> None:
    night.forget("settled group:g", "ended")
    night.event(150, Kind.SETTLED, "group:g")
    night.forget_after("c2.12", 140)
    night.stopped(161, "c2.12", T0, T1)
    night.closed(162, "c2.12")
    night.event(160, Kind.ENDED)
    (found,) = violations(night.judged(), Rule.CONVERGENCE)
    assert "only 40.0 s after" in found.message


def test_a_partition_without_an_owner_at_the_end_is_reported(night: Night) -> None:
    night.forget("c2.12 stopped t-0 t-1")
    night.stopped(139, "c2.12", T1)
    night.stopped(141, "c2.12", T0)
    report = night.judged()
    (found,) = violations(report, Rule.CONVERGENCE)
    assert found.where == "group g t-1"
    assert broken(report) == {Rule.CONVERGENCE}


@pytest.mark.parametrize(
    ("grown", "told"),
    [
        (replace(LEAN, threads=90), "threads"),
        (replace(LEAN, descriptors=90), "descriptors"),
        (replace(LEAN, rss_bytes=200 * 2**20), "rss_bytes"),
    ],
)
def test_a_process_whose_resources_grow_is_reported(night: Night, grown: Usage, told: str) -> None:
    for number in range(14):
        night.used(5 + 10 * number, LEAN if number < 10 else grown)
    (found,) = violations(night.judged(), Rule.NO_LEAKS)
    assert found.where == "serve:1 (pid 77)"
    assert found.message.startswith(f"{told} grew from")


@pytest.mark.parametrize(("share", "spun"), [(0.9, True), (0.5, False)])
def test_a_process_that_uses_a_whole_core_is_reported(night: Night, share: float, spun: bool) -> None:
    for number in range(14):
        busy = max(0, number - 5) * 10 * share
        night.used(5 + 10 * number, replace(LEAN, cpu_s=1 + busy))
    found = violations(night.judged(), Rule.NO_SPIN)
    assert [one.where for one in found] == (["serve:1 (pid 77)"] if spun else [])


def test_a_process_that_is_busy_for_a_moment_is_not_reported(night: Night) -> None:
    for number in range(14):
        night.used(5 + 10 * number, replace(LEAN, cpu_s=1 + (10 if number > 5 else 0)))
    assert night.judged().held


def test_two_successive_processes_with_the_same_name_are_not_compared(night: Night) -> None:
    for number in range(14):
        night.used(5 + 10 * number, Usage(0, "serve:1", 70 + number // 7, 60 * 2**20, 20 + 40 * (number // 7), 30, 5))
    assert night.judged().held


def test_unexplained_growth_of_the_number_of_znodes_is_reported(night: Night) -> None:
    night.used(136, Usage(0, "zookeeper", znodes=700))
    (found,) = violations(night.judged(), Rule.NO_LEAKS)
    assert "znodes grew by 200" in found.message


def test_znodes_of_new_partitions_are_not_reported(night: Night) -> None:
    night.event(40, Kind.TOPIC_ADDED, "topic:u", topic="u", partitions=30)
    night.used(136, Usage(0, "zookeeper", znodes=700))
    assert night.judged().held


def test_a_membership_lost_without_a_fault_is_reported(night: Night) -> None:
    night.forget("expire consumer:c2", "kill consumer:c1", "c1.13 opened", "c1.13 closed")
    report = night.judged()
    (found,) = violations(report, Rule.EXPLAINED)
    assert found.where == "group g c2"
    assert "its membership and 2 partitions" in found.message


def test_a_partition_revoked_and_returned_without_a_fault_is_a_violation(night: Night) -> None:
    night.stopped(135, "c2.12", T0)
    night.started(136, "c2.12", {T0: 120})
    report = night.judged()
    (found,) = violations(report, Rule.UNMOVED)
    assert "got it again 1.000 s later" in found.message
    assert broken(report) == {Rule.UNMOVED}


def test_a_partition_revoked_and_returned_during_a_fault_is_a_warning(night: Night) -> None:
    night.event(134.9, Kind.PAUSE, "group:g")
    night.stopped(135, "c2.12", T0)
    night.started(136, "c2.12", {T0: 120})
    report = night.judged()
    assert [found.severity for found in of(report, Rule.UNMOVED).findings] == [Severity.WARNING]
    assert report.held


def test_an_eager_consumer_may_get_a_revoked_partition_back(night: Night) -> None:
    night.forget("c2.12 opened")
    night.opened(9, "c2.12", kind="library, eager")
    night.stopped(135, "c2.12", T0)
    night.started(136, "c2.12", {T0: 120})
    assert night.judged().held


def test_a_process_that_ended_unexpectedly_is_reported(night: Night) -> None:
    night.event(100, Kind.DIED, "consumer:c1", exit_code=3)
    (found,) = violations(night.judged(), Rule.COMPLETE)
    assert "exit code 3" in found.message


def test_a_zookeeper_server_that_ended_because_of_its_own_check_is_an_exception(night: Night) -> None:
    why = "IllegalStateException: Committed proposal cached out of order: 0x5 is not the next proposal of 0x3"
    night.event(100, Kind.DIED, "zookeeper:3", exit_code=0, own_check=why)
    report = night.judged()
    (found,) = of(report, Rule.COMPLETE).findings
    assert found.severity is Severity.EXCEPTION
    assert "ZooKeeper's own check" in found.message
    assert report.held


def test_a_consumer_that_neither_left_nor_was_killed_is_reported(night: Night) -> None:
    night.forget("c1.13 closed")
    (found,) = violations(night.judged(), Rule.COMPLETE)
    assert found.where == "consumers/c1.13.jsonl"


@pytest.mark.parametrize("name", ["baseline", "quiet", "ended"])
def test_an_incomplete_run_is_reported(night: Night, name: str) -> None:
    night.forget(name)
    report = night.judged()
    assert f"it never reached {name}" in [found.message for found in violations(report, Rule.COMPLETE)]


def test_the_last_line_of_a_killed_process_may_be_incomplete(night: Night) -> None:
    night.add(19.9, "torn", lambda: night.tear("c1.11"))
    assert night.judged().held


def test_rules_without_evidence_are_reported_as_not_exercised(night: Night) -> None:
    night.nothing()
    report = night.judged()
    said = {ruling.rule: ruling.status for ruling in report.rulings}
    assert said.pop(Rule.COMPLETE) is Status.BROKEN
    assert set(said) == set(Rule) - EVENT_RULES - RULES_OF_SOME - {Rule.COMPLETE}
    assert set(said.values()) == {Status.NOT_EXERCISED}


def test_a_freeze_without_an_audit_is_not_judged(night: Night) -> None:
    (night.directory / "audit.json").unlink()
    report = night.judged()
    assert of(report, Rule.AUDIT).status is Status.NOT_EXERCISED
    assert of(report, Rule.FROZEN_COORDINATOR).status is Status.NOT_EXERCISED


def test_a_kill_of_an_instance_that_is_not_elected_does_not_exercise_the_rule(night: Night) -> None:
    night.forget("kill serve:2", "elected serve:3")
    night.event(60, Kind.KILL, "serve:3", pid=9)
    assert of(night.judged(), Rule.KILLED_FAILOVER).status is Status.NOT_EXERCISED


def test_a_kill_during_another_fault_does_not_exercise_the_rule(night: Night) -> None:
    night.forget("elected serve:3")
    night.event(75, Kind.ELECTED, "serve:3", epoch=3)
    night.event(60.5, Kind.FREEZE, "zookeeper:1", Phase.BEGIN)
    night.event(66, Kind.FREEZE, "zookeeper:1", Phase.END)
    assert of(night.judged(), Rule.KILLED_FAILOVER).status is Status.NOT_EXERCISED
