"""The judge's findings about commits of stock clients; the tests cover each way to lose one."""

from __future__ import annotations

import json

from tests.chaos.journal import GROUP_LOG, Kind
from tests.chaos.judge.findings import Rule, Status
from tests.chaos.night import T0, T1, Night, broken, of, violations


def test_a_clean_night_of_stock_clients_holds_every_rule(clients_night: Night) -> None:
    report = clients_night.judged()
    assert report.held, report.rulings
    assert of(report, Rule.COMMITS).figures == {"acknowledged": 2, "readings": 4}
    assert of(report, Rule.NOTHING_MISSING).figures == {"acknowledged": 100, "given": 100, "repeats": 30}


def test_the_next_owner_may_begin_at_a_commit_nobody_heard_of(clients_night: Night) -> None:
    clients_night.forget("c2.12 started t-0", "c2.12 handed t-0 50")
    clients_night.started(15, "c2.12", {T0: 80}, asked=14.9)
    clients_night.handed(16, "c2.12", T0, 80, 100)
    assert clients_night.judged().held


def test_a_commit_that_the_next_owner_is_not_told_of_is_lost(clients_night: Night) -> None:
    clients_night.forget("c2.12 started t-0", "c2.12 handed t-0 50")
    clients_night.started(15, "c2.12", {T0: None}, asked=14.9)
    clients_night.handed(16, "c2.12", T0, 0, 100)
    (found,) = violations(clients_night.judged(), Rule.COMMITS)
    assert "c2.12.jsonl was told None, although 50 had been acknowledged" in found.message


def test_an_onlooker_who_is_told_an_older_commit_proves_that_it_went_back(clients_night: Night) -> None:
    clients_night.looked(17, {T0: 50})
    (found,) = violations(clients_night.judged(), Rule.COMMITS)
    assert "an onlooker was told 50, although 100 had been acknowledged 0.700 s before it asked" in found.message


def test_who_asked_before_the_commit_was_acknowledged_may_be_told_the_one_before(clients_night: Night) -> None:
    clients_night.looked(16.25, {T0: 50})
    assert clients_night.judged().held


def test_a_member_may_commit_a_smaller_offset_itself(clients_night: Night) -> None:
    clients_night.committing(17, "c2.12", {T0: 90})
    clients_night.looked(17.5, {T0: 90})
    report = clients_night.judged()
    assert of(report, Rule.COMMITS).status is Status.HELD


def test_an_attempt_of_before_the_last_acknowledged_commit_excuses_nothing(clients_night: Night) -> None:
    clients_night.looked(17, {T0: 80})  # which c1 asked for before it was killed
    assert broken(clients_night.judged()) == {Rule.COMMITS}


def test_a_group_without_any_commit_has_nothing_to_be_judged_by(clients_night: Night) -> None:
    for name in ("c1.11 committed t-0=50", "c2.12 committed t-0=100"):
        clients_night.forget(name)
    assert of(clients_night.judged(), Rule.COMMITS).status is Status.NOT_EXERCISED


def test_stock_clients_are_judged_for_missing_records_too(clients_night: Night) -> None:
    clients_night.produced(3, T1, 0, 10)
    assert Rule.NOTHING_MISSING in broken(clients_night.judged())


def test_what_the_audit_of_the_groups_log_found_is_told(clients_night: Night) -> None:
    said = {
        "violations": [{"rule": "older-term", "what": "an older term wrote"}],
        "warnings": [],
        "checked": {"terms": 3},
    }
    (clients_night.directory / GROUP_LOG).write_text(json.dumps(said))
    report = clients_night.judged()
    assert of(report, Rule.GROUP_LOG).checked == "terms 3"
    assert "an older term wrote" in violations(report, Rule.GROUP_LOG)[0].message


def test_a_group_that_never_settles_after_the_last_fault_is_told(clients_night: Night) -> None:
    clients_night.forget(f"{Kind.SETTLED} group:g")
    assert Rule.CONVERGENCE in broken(clients_night.judged())
