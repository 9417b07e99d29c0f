"""Tests what the judge finds out about moves between the brokers and the instances."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.journal import Kind, LogPlace, Phase
from tests.chaos.journal.log import Appended
from tests.chaos.judge.findings import Rule, Status
from tests.chaos.judge.moves import table
from tests.chaos.night import T0, Night, of, violations


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

    def appended(t: float, partition: int, offset: int, at_ms: int) -> None:
        row = LogPlace(partition, at_ms), Appended("g", T0, offset, at_ms)
        moving.add(t, f"appended {partition} {offset}", lambda: moving._log.read([row]))

    appended(4.15, 1_001, 50, 0)
    appended(16.15, 1, 100, 2)
    appended(16.3, 1_001, 100, 1)
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
