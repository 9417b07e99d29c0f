"""Tests what the judge finds out about moves between the brokers and the instances."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.journal import Kind, Phase
from tests.chaos.judge.findings import Rule, Status
from tests.chaos.judge.moves import table
from tests.chaos.night import T0, Night, of, violations

GONE_BACK = "the commit of 50 by c1.11.jsonl was stored after one by a later owner"


@pytest.fixture
def moving(clients_night: Night) -> Night:
    """The group is taken over between the commit at 16.1 s, which takes 0.1 s, and the end of the night."""
    clients_night.event(16, Kind.MOVED, "group:g", Phase.BEGIN, to="client-assigned", killed="")
    return clients_night


def ends(night: Night, at: float = 19, **said: Any) -> None:
    detail = {"to": "client-assigned", "killed": "", "result": "done", "message": "moved", "refused": [], "took_s": 0.4}
    night.event(at, Kind.MOVED, "group:g", Phase.END, **detail | {"load": 2.0} | said)


def test_a_move_pauses_a_member_that_waits_for_its_commit(moving: Night) -> None:
    ends(moving)
    report = moving.judged()
    assert of(report, Rule.MOVES).status is of(report, Rule.PAUSES).status is Status.HELD
    (move,) = report.moves
    assert move.paused_s == pytest.approx(0.1)
    assert of(report, Rule.MOVES).checked == "1 moves, 0 with a kill, at loads of 2 to 2"
    assert of(report, Rule.PAUSES).checked == "median 0.10 s, worst 0.10 s; without a kill 0.10 s, 0.10 s"
    assert list(table(report.moves))[2].startswith("| client-assigned |  | 1 | 0.10 s, 0.10 s |")


def test_a_member_without_partitions_is_paused(moving: Night) -> None:
    moving.lost(17, "c2.12", T0)
    moving.started(20.6, "c2.12", {T0: 100}, asked=20.5)
    ends(moving, 21)
    found = violations(moving.judged(), Rule.PAUSES)
    assert [one.message for one in found] == [
        "the median pause was 3.60 s, more than 0.5 s",
        "the longest pause was 3.60 s, more than 3 s",
    ]


def test_a_move_that_was_refused_until_the_end_is_reported(moving: Night) -> None:
    ends(moving, result="", message="not answered", refused=["refused: group g was not moved: it is rebalancing"])
    report = moving.judged()
    assert "it was not done" in violations(report, Rule.MOVES)[0].message
    assert "1 it is rebalancing" in list(table(report.moves))[2]


def test_the_commits_of_both_logs_are_ordered_by_their_timestamps(moving: Night) -> None:
    """The reader receives the copies of a take-over before the commits in the brokers' log that they are copies of."""
    moving.forget("appended t-0=50", "appended t-0=100")
    moving.appended(4.15, T0, 50, stored=4.15, of_brokers=True)
    moving.appended(16.16, T0, 100, stored=16.15)
    moving.appended(16.3, T0, 100, stored=16.14, of_brokers=True)
    ends(moving)
    assert not violations(moving.judged(), Rule.COMMITS)


@pytest.mark.parametrize("lost", [False, True])
def test_commits_of_a_managed_group_are_in_no_log_and_what_is_read_later_is_not_older(
    clients_night: Night, lost: bool
) -> None:
    clients_night.event(16, Kind.MOVED, "group:g", Phase.BEGIN, to="managed", killed="")
    clients_night.forget("appended t-0=100")
    ends(clients_night, to="managed")
    if lost:
        clients_night.looked(17, {T0: 50})
    found = [one.message for one in violations(clients_night.judged(), Rule.COMMITS)]
    told = "an observer read offset 50, although 100 had been acknowledged 0.700 s earlier"
    assert found == [told] * lost


@pytest.fixture
def managed(clients_night: Night) -> Night:
    """The group becomes managed from 16 s on. The reader receives what is in the brokers' log before only after that,
    and the commit at 16.1 s, which is acknowledged at 16.2 s, is in no log."""
    clients_night.event(16, Kind.MOVED, "group:g", Phase.BEGIN, to="managed", killed="")
    clients_night.forget("appended t-0=50", "appended t-0=100")
    clients_night.appended(17.5, T0, 50, stored=4.15, of_brokers=True)
    ends(clients_night, to="managed")
    return clients_night


def told(night: Night) -> list[str]:
    return [one.message for one in violations(night.judged(), Rule.COMMITS)]


def test_what_a_log_has_from_before_is_not_newer_because_it_was_read_late(managed: Night) -> None:
    assert not told(managed)


@pytest.mark.parametrize(("of_brokers", "stored"), [(False, 16.3), (True, 18.5)])
def test_a_copy_that_was_stored_after_a_newer_commit_is_reported(
    managed: Night, of_brokers: bool, stored: float
) -> None:
    """A take-over or a give-back copies offsets that it has read too early."""
    managed.appended(18.6, T0, 50, stored=stored, of_brokers=of_brokers)
    assert told(managed) == [GONE_BACK]


@pytest.mark.parametrize("lost", [False, True])
def test_a_commit_that_only_an_observer_has_seen_is_newer_than_the_copy_that_was_made_meanwhile(
    managed: Night, lost: bool
) -> None:
    """The commit waits until the group has been taken over, and its member never hears of it."""
    managed.forget("c2.12 committed t-0=100")
    managed.appended(17.5, T0, 50, stored=16.3)
    managed.appended(17.6, T0, None, stored=16.5)
    managed.looked(18, {T0: 100}, took=1.8)
    if lost:
        managed.appended(19.1, T0, 50, stored=19, of_brokers=True)
    assert told(managed) == [GONE_BACK] * lost


@pytest.mark.parametrize("lost", [False, True])
def test_a_client_may_commit_again_what_a_log_has_from_before_its_group_was_managed(managed: Night, lost: bool) -> None:
    """The commit is the same as one in the log, and yet another, which the log need not have."""
    managed.committing(17, "c2.12", {T0: 50})
    managed.committed(17.1, "c2.12", {T0: 50})
    managed.forget("looked 22")
    managed.looked(17.4, {T0: 100 if lost else 50})
    assert told(managed) == ["an observer read offset 100, although 50 had been acknowledged 0.200 s earlier"] * lost
