"""Tests the judge's findings about a managed group with a stock client. The tests break each rule on purpose.

``c1`` is a stock client, and ``c2`` is the library's consumer. ``c1`` gives up t-1 at 10 s, and is killed with t-0 at
20 s.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.journal import Kind, Observed, Phase
from tests.chaos.judge.findings import Rule, Severity
from tests.chaos.night import T0, T1, Night, broken, of, violations

STOPPED, ACKNOWLEDGED = "c1.11 stopped t-1", "c1.11 committed t-1=50"
NEXT = ("c2.12 started t-1", "c2.12 handed t-1 50")


def not_acknowledged(night: Night, *, begins_at: int) -> None:
    """``c1`` has commits of only 30 records of t-1 acknowledged at its stop."""
    night.forget(ACKNOWLEDGED, *NEXT)
    night.committed(5, "c1.11", {T1: 30})
    night.started(10.05, "c2.12", {T1: begins_at})
    night.handed(12, "c2.12", T1, begins_at, 100)


def of_the_library(night: Night) -> None:
    night.forget("c1.11 opened")
    night.opened(1, "c1.11")


def test_a_clean_night_with_a_stock_client_holds_every_rule(mix: Night) -> None:
    report = mix.judged()
    assert report.held, report.rulings
    assert of(report, Rule.COMMITS).figures == {"acknowledged": 2, "handed_over": 2}


def test_records_after_the_last_acknowledged_commit_of_a_stock_client_may_be_read_again(mix: Night) -> None:
    not_acknowledged(mix, begins_at=30)
    assert mix.judged().held


def test_a_library_consumers_unacknowledged_records_may_not_be_read_again(mix: Night) -> None:
    of_the_library(mix)
    not_acknowledged(mix, begins_at=30)
    (found,) = violations(mix.judged(), Rule.REPEATS)
    assert "c1 (pid 11), which gave it up cleanly at 50" in found.message


def test_an_owner_that_begins_before_a_stock_clients_acknowledged_commit_is_reported(mix: Night) -> None:
    not_acknowledged(mix, begins_at=20)
    (found,) = violations(mix.judged(), Rule.REPEATS)
    assert "c1 (pid 11), which had committed 30 before that" in found.message


def test_records_may_not_be_read_again_after_a_stock_clients_acknowledged_stop(mix: Night) -> None:
    mix.forget(*NEXT)
    mix.started(10.05, "c2.12", {T1: 40})
    mix.handed(12, "c2.12", T1, 40, 100)
    assert len(violations(mix.judged(), Rule.REPEATS)) == 2


def test_a_stock_client_may_send_an_older_commit_again(mix: Night) -> None:
    not_acknowledged(mix, begins_at=30)
    mix.committed(4.5, "c1.11", {T1: 40})
    assert mix.judged().held


@pytest.mark.parametrize(
    ("begins_at", "fault", "severity"),
    [(50, True, Severity.WARNING), (50, False, Severity.VIOLATION), (40, True, Severity.VIOLATION)],
)
def test_an_old_commit_is_a_warning_if_a_stock_clients_coordinator_changed_and_else_a_violation(
    mix: Night, begins_at: int, fault: bool, severity: Severity
) -> None:
    """``c1`` hands out records up to 60 and has 60 acknowledged at its stop, but the next owner begins earlier."""
    mix.forget(ACKNOWLEDGED, *NEXT)
    mix.handed(6, "c1.11", T1, 50, 60)
    mix.committed(10.01, "c1.11", {T1: 60})
    mix.started(10.05, "c2.12", {T1: begins_at})
    mix.handed(12, "c2.12", T1, begins_at, 100)
    if fault:
        mix.event(7, Kind.LEADERS_MOVED, "log")
    found = of(mix.judged(), Rule.REPEATS).findings
    assert {one.severity for one in found} == {severity}


def test_a_stock_client_may_hand_out_records_until_it_learns_that_its_session_has_ended(mix: Night) -> None:
    mix.forget(STOPPED, ACKNOWLEDGED)
    mix.event(4.5, Kind.FREEZE, "consumer:c1", Phase.BEGIN)
    mix.event(10.8, Kind.FREEZE, "consumer:c1", Phase.END)
    mix.handed(11, "c1.11", T1, 50, 60)
    mix.lost(11.5, "c1.11", T0, T1)
    mix.forget("c1.11 handed t-0 50", "c1.11 committed t-0=50", NEXT[0], NEXT[1], "c2.12 started t-0")
    mix.started(10.05, "c2.12", {T1: None})
    mix.handed(12, "c2.12", T1, 0, 100)
    mix.started(26, "c2.12", {T0: None})
    mix.handed(26.5, "c2.12", T0, 0, 50)
    report = mix.judged()
    assert report.held, report.rulings
    (found,) = of(report, Rule.ONE_OWNER).findings
    assert found.severity is Severity.EXCEPTION
    assert "which a stock client learns late" in found.message


@pytest.mark.parametrize("acknowledged", [True, False])
def test_two_owners_are_reported_without_a_fault_or_with_an_acknowledged_stop(mix: Night, acknowledged: bool) -> None:
    """An acknowledged stop is no excuse, not even under a fault."""
    mix.forget(STOPPED)
    mix.handed(11, "c1.11", T1, 50, 60)
    mix.stopped(11.2, "c1.11", T1)
    if acknowledged:
        mix.event(4.5, Kind.KILL, "kafka:1")
        mix.committed(11.3, "c1.11", {T1: 60})
    else:
        mix.forget(ACKNOWLEDGED)
    assert Rule.ONE_OWNER in broken(mix.judged())


def test_an_acknowledged_commit_that_was_requested_after_the_next_owners_start_is_reported(mix: Night) -> None:
    mix.forget(STOPPED, ACKNOWLEDGED)
    mix.committing(10.01, "c1.11", {T1: 50})
    mix.committed(10.02, "c1.11", {T1: 50})
    mix.stopped(10.03, "c1.11", T1)
    mix.committing(11, "c1.11", {T1: 50})
    mix.committed(11.1, "c1.11", {T1: 50})
    (found,) = violations(mix.judged(), Rule.COMMITS)
    assert "which had asked for it 0.950 s after c2 (pid 12) had been started" in found.message


def test_a_commit_in_progress_at_the_next_owners_start_may_be_acknowledged(mix: Night) -> None:
    mix.forget(ACKNOWLEDGED)
    mix.committing(10.01, "c1.11", {T1: 50})
    mix.committed(10.2, "c1.11", {T1: 50})
    assert mix.judged().held


def test_a_stock_client_that_loses_its_membership_without_a_fault_is_reported(mix: Night) -> None:
    mix.lost(6, "c1.11", T0, T1)
    assert Rule.EXPLAINED in broken(mix.judged())


@pytest.mark.parametrize("assigned", [True, False])
def test_new_partitions_explain_a_lost_membership_only_in_a_client_assigned_group(mix: Night, assigned: bool) -> None:
    mix.event(4.5, Kind.PARTITIONS_ADDED, "topic:u", topic="u", partitions=2)
    mix.lost(6, "c1.11", T0, T1)
    (group,) = mix.run.groups
    assert (Rule.EXPLAINED in broken(mix.judged(group=replace(group, assigned=assigned)))) is not assigned


@pytest.mark.parametrize(("until", "is_explained"), [(7, True), (5.5, False)])
def test_a_lost_tree_explains_lost_memberships_until_its_end(mix: Night, until: float, is_explained: bool) -> None:
    mix.event(4.5, Kind.TREE_LOST, "world:tree-lost-1", Phase.BEGIN)
    mix.event(until, Kind.TREE_LOST, "world:tree-lost-1", Phase.END, **Observed().to_detail())
    mix.lost(6, "c1.11", T0, T1)
    assert (Rule.EXPLAINED in broken(mix.judged())) is not is_explained


@pytest.mark.parametrize("stock", [True, False])
def test_a_killed_broker_explains_only_a_stock_clients_lost_membership(mix: Night, stock: bool) -> None:
    if not stock:
        of_the_library(mix)
    mix.event(4.5, Kind.KILL, "kafka:1")
    mix.lost(6, "c1.11", T0, T1)
    assert (Rule.EXPLAINED in broken(mix.judged())) is not stock


@pytest.mark.parametrize(("kind", "held"), [("confluent-kafka, eager, classic, range", True), ("library", False)])
def test_only_an_eager_client_may_get_a_revoked_partition_back(mix: Night, kind: str, held: bool) -> None:
    mix.forget("c2.12 opened")
    mix.opened(9, "c2.12", kind=kind)
    mix.stopped(135, "c2.12", T0)
    mix.started(136, "c2.12", {T0: 120})
    assert (Rule.UNMOVED not in broken(mix.judged())) is held
