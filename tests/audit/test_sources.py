"""Tests of merging the logs of several servers into one history, without I/O."""

from __future__ import annotations

from kafka_coord.monitor.audit.txnlog import Segment, never_committed


def span(epoch: int, first: int, last: int) -> Segment:
    return Segment((epoch << 32) + first, (epoch << 32) + last)


def test_equal_logs_contain_no_uncommitted_transactions() -> None:
    log = [span(1, 1, 100), span(2, 1, 50), span(3, 1, 10)]
    assert never_committed([log, log, log]) == []


def test_gaps_of_a_server_that_was_down_do_not_count() -> None:
    whole = [span(1, 1, 100), span(2, 1, 50), span(3, 1, 10)]
    down = [span(1, 1, 60), span(2, 20, 50), span(3, 1, 10)]
    assert never_committed([whole, whole, down]) == []


def test_transactions_only_at_the_end_of_a_dead_leaders_log_were_not_committed() -> None:
    follower = [span(1, 1, 100), span(2, 1, 50)]
    leader = [span(1, 1, 104)]
    assert never_committed([follower, follower, leader]) == [span(1, 101, 104)]


def test_transactions_only_in_a_dead_leaders_log_before_a_snapshot_were_not_committed() -> None:
    follower = [span(4, 1, 1672), span(5, 1, 1841)]
    leader = [span(4, 1, 1696), span(5, 85, 1841)]
    assert never_committed([follower, leader]) == [span(4, 1673, 1696)]


def test_a_log_that_ended_before_the_next_epoch_is_outvoted() -> None:
    whole = [span(1, 1, 100), span(2, 1, 50)]
    stale = [span(1, 1, 104), span(2, 1, 50)]
    assert never_committed([whole, stale, whole]) == [span(1, 101, 104)]


def test_transactions_of_the_current_epoch_may_still_be_committed() -> None:
    ahead = [span(1, 1, 100), span(2, 1, 55)]
    behind = [span(1, 1, 100), span(2, 1, 50)]
    assert never_committed([ahead, behind, behind]) == []
