"""Tests the judge's findings about the ends of coordinators, and its use of the audit."""

from __future__ import annotations

from tests.chaos.journal import Kind, Phase
from tests.chaos.judge.findings import Rule, Severity
from tests.chaos.night import T0, Night, broken, of, violations


def test_the_figures_of_failovers_are_measured(night: Night) -> None:
    report = night.judged()
    stopped, killed = of(report, Rule.CLEAN_FAILOVER).figures, of(report, Rule.KILLED_FAILOVER).figures
    assert (stopped["n"], round(stopped["decided_max_s"], 3), round(stopped["elected_max_s"], 3)) == (1, 0.19, 0.15)
    assert (killed["n"], round(killed["max_s"], 3)) == (1, 5.0)
    assert of(report, Rule.FROZEN_COORDINATOR).figures["n"] == 1


def test_a_rebalance_decided_late_after_a_clean_stop_is_reported(night: Night) -> None:
    night.forget("request group:g end")
    night.event(50.4, Kind.REQUEST, "group:g", Phase.END, id="r1", group="g")
    (found,) = violations(night.judged(), Rule.CLEAN_FAILOVER)
    assert "decided 390 ms later" in found.message


def test_the_time_of_a_decision_in_zookeepers_log_replaces_that_of_the_requester(night: Night) -> None:
    night.forget("request group:g end")
    night.event(50.4, Kind.REQUEST, "group:g", Phase.END, id="r1", group="g")
    (night.directory / "decisions.json").write_text('{"r1": 0.12}')
    ruling = of(night.judged(), Rule.CLEAN_FAILOVER)
    assert not ruling.findings
    assert (ruling.figures["decided_max_s"], round(ruling.figures["heard_max_s"], 3)) == (0.12, 0.39)


def test_a_rebalance_decided_late_according_to_zookeepers_log_is_reported(night: Night) -> None:
    (night.directory / "decisions.json").write_text('{"r1": 0.41}')
    (found,) = violations(night.judged(), Rule.CLEAN_FAILOVER)
    assert "decided 410 ms later" in found.message


def test_a_rebalance_never_decided_after_a_clean_stop_is_reported(night: Night) -> None:
    night.forget("request group:g end")
    (found,) = violations(night.judged(), Rule.CLEAN_FAILOVER)
    assert "decided never" in found.message


def test_the_machines_load_is_reported_with_a_late_decision(night: Night) -> None:
    (night.directory / "decisions.json").write_text('{"r1": 0.41}')
    night.event(50.9, Kind.MACHINE, "serve:1", seconds=0.9, busy=0.6, stolen=0.31, waited=0.5)
    report = night.judged()
    (found,) = violations(report, Rule.CLEAN_FAILOVER)
    assert "other guests of the host used 31%" in found.evidence[-1].what
    assert of(report, Rule.CLEAN_FAILOVER).figures["stolen_max"] == 0.31


def test_a_partition_revoked_during_a_clean_stop_is_reported(night: Night) -> None:
    night.stopped(50.3, "c2.12", T0)
    night.started(50.4, "c2.12", {T0: 100})
    (found,) = violations(night.judged(), Rule.CLEAN_FAILOVER)
    assert "gave up the partition while the coordinator was stopped cleanly" in found.message


def test_a_killed_coordinator_replaced_too_late_is_reported(night: Night) -> None:
    night.forget("elected serve:3")
    night.event(67, Kind.ELECTED, "serve:3", epoch=3)
    (found,) = violations(night.judged(), Rule.KILLED_FAILOVER)
    assert "7.00 s" in found.message


def test_a_killed_coordinator_never_replaced_is_reported(night: Night) -> None:
    night.forget("elected serve:3", "elected serve:1")
    night.event(1, Kind.ELECTED, "serve:1", epoch=1)
    (found,) = violations(night.judged(), Rule.KILLED_FAILOVER)
    assert "nobody" in found.message


def test_a_frozen_coordinator_that_is_not_replaced_is_reported(night: Night) -> None:
    night.forget("elected serve:1")
    night.event(1, Kind.ELECTED, "serve:1", epoch=1)
    night.event(93, Kind.ELECTED, "serve:3", epoch=4)
    (found,) = violations(night.judged(), Rule.FROZEN_COORDINATOR)
    assert "no other instance took over" in found.message


def test_a_write_of_a_coordinator_after_its_freeze_is_reported(night: Night) -> None:
    night.audit({"violations": [{"rule": "stale-epoch", "what": "wrote under epoch 3", "zxid": None}], "checked": {}})
    report = night.judged()
    (found,) = violations(report, Rule.FROZEN_COORDINATOR)
    assert found.message == "stale-epoch: wrote under epoch 3"
    assert broken(report) == {Rule.AUDIT, Rule.FROZEN_COORDINATOR}


def test_findings_of_the_audit_are_reported(night: Night) -> None:
    night.audit(
        {
            "violations": [{"rule": "two-holders", "what": "c1 and c2 hold t-0", "group": "g"}, "in other words"],
            "warnings": [{"rule": "seek-back", "what": "c1 went back"}],
            "checked": {"transactions": 5},
        }
    )
    report = night.judged()
    ruling = of(report, Rule.AUDIT)
    assert [(found.severity, found.message) for found in ruling.findings] == [
        (Severity.VIOLATION, "two-holders: c1 and c2 hold t-0 group=g"),
        (Severity.VIOLATION, "in other words"),
        (Severity.WARNING, "seek-back: c1 went back"),
    ]
    assert ruling.checked == "transactions 5"
    assert broken(report) == {Rule.AUDIT}
