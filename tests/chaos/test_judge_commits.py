"""Tests the judge's findings about commits of stock clients, with each way to lose a commit."""

from __future__ import annotations

import json

import pytest

from tests.chaos.journal import GROUP_LOG, Kind
from tests.chaos.judge.findings import Rule, Status
from tests.chaos.night import T0, T1, Night, broken, of, violations


def test_a_clean_night_of_stock_clients_holds_every_rule(clients_night: Night) -> None:
    report = clients_night.judged()
    assert report.held, report.rulings
    assert of(report, Rule.COMMITS).figures == {"acknowledged": 2, "readings": 4, "sent_again": 0, "unread": 0}
    assert of(report, Rule.NOTHING_MISSING).figures == {"acknowledged": 100, "given": 100, "repeats": 30}


def test_the_next_owner_may_begin_at_a_commit_whose_answer_was_lost(clients_night: Night) -> None:
    clients_night.forget("c2.12 started t-0", "c2.12 handed t-0 50")
    clients_night.appended(8.15, T0, 80)
    clients_night.started(15, "c2.12", {T0: 80}, asked=14.9)
    clients_night.handed(16, "c2.12", T0, 80, 100)
    assert clients_night.judged().held


def test_a_commit_that_the_next_owner_does_not_get_counts_as_lost(clients_night: Night) -> None:
    clients_night.forget("c2.12 started t-0", "c2.12 handed t-0 50")
    clients_night.started(15, "c2.12", {T0: None}, asked=14.9)
    clients_night.handed(16, "c2.12", T0, 0, 100)
    (found,) = violations(clients_night.judged(), Rule.COMMITS)
    assert "c2.12.jsonl read offset None, although 50 had been acknowledged" in found.message


def test_an_older_offset_that_an_observer_reads_is_reported(clients_night: Night) -> None:
    clients_night.looked(17, {T0: 50})
    (found,) = violations(clients_night.judged(), Rule.COMMITS)
    assert "an observer read offset 50, although 100 had been acknowledged 0.700 s earlier" in found.message


def test_a_request_before_the_acknowledgement_of_a_commit_may_return_the_previous_one(clients_night: Night) -> None:
    clients_night.looked(16.25, {T0: 50})
    assert clients_night.judged().held


def test_a_read_offset_that_was_never_in_the_log_is_reported(clients_night: Night) -> None:
    clients_night.looked(3, {T0: 7})
    (found,) = violations(clients_night.judged(), Rule.COMMITS)
    assert "an observer read offset 7, which was never in the groups log" in found.message


def test_a_member_may_commit_a_smaller_offset_itself(clients_night: Night) -> None:
    clients_night.committing(17, "c2.12", {T0: 90})
    clients_night.appended(17.1, T0, 90)
    clients_night.looked(17.5, {T0: 90})
    clients_night.looked(22.5, {T0: 90})
    clients_night.forget("looked 22")
    report = clients_night.judged()
    assert report.held
    assert of(report, Rule.COMMITS).figures["sent_again"] == 1


def test_a_requested_commit_that_is_not_in_the_log_excuses_no_read_offset(clients_night: Night) -> None:
    clients_night.looked(17, {T0: 80})  # c1 requested this commit before it was killed
    assert broken(clients_night.judged()) == {Rule.COMMITS}


def test_an_acknowledged_commit_that_is_not_in_the_log_is_reported(clients_night: Night) -> None:
    clients_night.committed(8.15, "c1.11", {T0: 80})
    (found, *_) = violations(clients_night.judged(), Rule.COMMITS)
    assert "the commit of 80 was acknowledged to c1.11.jsonl, and is not in the groups log" in found.message


def test_a_commit_in_the_log_that_no_client_requested_is_reported(clients_night: Night) -> None:
    clients_night.appended(5.5, T0, 70)
    (found,) = violations(clients_night.judged(), Rule.COMMITS)
    assert "the groups log has a commit of 70 that no client requested" in found.message


def test_a_commit_that_is_stored_again_after_a_newer_one_is_reported(clients_night: Night) -> None:
    clients_night.committed(8.15, "c1.11", {T0: 80})
    clients_night.appended(8.12, T0, 80)
    clients_night.appended(8.3, T0, 50)
    (found,) = violations(clients_night.judged(), Rule.COMMITS)
    assert "the commit of 50 was stored again after 80, and no client had sent it again" in found.message


def test_a_commit_of_an_earlier_owner_after_one_of_the_next_owner_is_reported(clients_night: Night) -> None:
    clients_night.appended(16.4, T0, 80)  # c1 requested it, and c2 has committed later offsets since then
    (found,) = violations(clients_night.judged(), Rule.COMMITS)
    assert "the commit of 80 by c1.11.jsonl was stored after one by a later owner" in found.message


def test_a_partition_of_the_log_with_unread_records_is_not_judged(clients_night: Night) -> None:
    clients_night.appended(16.5, T0, 100, gap=3)
    clients_night.looked(17, {T0: 50})
    report = clients_night.judged()
    assert of(report, Rule.COMMITS).status is Status.NOT_EXERCISED
    assert "compaction removed 3 records" in of(report, Rule.COMMITS).findings[0].message


@pytest.mark.parametrize("told", [50, 100])
def test_a_client_may_send_an_automatic_commit_again_after_a_newer_one(automatic_night: Night, told: int) -> None:
    """librdkafka does so after a broken connection. The server stores the commits in the order in which they arrive."""
    automatic_night.appended(9.15, T0, 100)
    automatic_night.committed(9.2, "c1.11", {T0: 100})
    automatic_night.appended(9.25, T0, 50)
    automatic_night.committed(9.3, "c1.11", {T0: 50})
    automatic_night.looked(10, {T0: told})
    report = automatic_night.judged()
    assert of(report, Rule.COMMITS).figures["sent_again"] == 1
    assert broken(report) == (set() if told == 50 else {Rule.COMMITS})


def test_an_older_automatic_commit_that_its_client_did_not_send_again_is_reported(automatic_night: Night) -> None:
    automatic_night.appended(4.15, T0, 50)
    automatic_night.committed(4.2, "c1.11", {T0: 50})
    automatic_night.appended(9.15, T0, 100)
    automatic_night.committed(9.2, "c1.11", {T0: 100})
    automatic_night.appended(9.25, T0, 50)
    (found,) = violations(automatic_night.judged(), Rule.COMMITS)
    assert "the commit of 50 was stored again after 100" in found.message


def test_a_new_consumer_in_the_same_process_may_begin_at_the_last_commit(clients_night: Night) -> None:
    """The previous consumer has failed, and its application was not asked to give up the partitions."""
    clients_night.handed(17, "c2.12", T0, 100, 120)
    clients_night.produced(16.5, T0, 100, 120)
    clients_night.started(19, "c2.12", {T0: 100}, asked=18.9)
    clients_night.handed(19.01, "c2.12", T0, 100, 120, took=0.2)
    assert clients_night.judged().held


def test_without_commits_the_rule_about_commits_is_not_exercised(clients_night: Night) -> None:
    for name in ("c1.11 committed t-0=50", "c2.12 committed t-0=100"):
        clients_night.forget(name)
    assert of(clients_night.judged(), Rule.COMMITS).status is Status.NOT_EXERCISED


def test_stock_clients_are_judged_for_missing_records_too(clients_night: Night) -> None:
    clients_night.produced(3, T1, 0, 10)
    assert Rule.NOTHING_MISSING in broken(clients_night.judged())


def test_findings_of_the_groups_logs_audit_are_reported(clients_night: Night) -> None:
    said = {
        "violations": [{"rule": "older-term", "what": "an older term wrote"}],
        "warnings": [],
        "checked": {"terms": 3},
    }
    (clients_night.directory / GROUP_LOG).write_text(json.dumps(said))
    report = clients_night.judged()
    assert of(report, Rule.GROUP_LOG).checked == "terms 3"
    assert "an older term wrote" in violations(report, Rule.GROUP_LOG)[0].message


def test_a_group_that_never_settles_after_the_last_fault_is_reported(clients_night: Night) -> None:
    clients_night.forget(f"{Kind.SETTLED} group:g")
    assert Rule.CONVERGENCE in broken(clients_night.judged())
