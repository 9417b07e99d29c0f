"""Tests the contents and the order of the judge's report."""

from __future__ import annotations

import json

from tests.chaos.journal import Kind, Phase
from tests.chaos.judge import write_report
from tests.chaos.night import T0, T1, Night


def page_of(night: Night) -> str:
    write_report(night.judged(), night.directory)
    return (night.directory / "report.md").read_text()


def test_the_report_of_a_clean_run_has_the_verdict_the_costs_and_the_figures(night: Night) -> None:
    page = page_of(night)
    assert page.splitlines()[2] == "**every rule held**"
    titles = [line for line in page.splitlines() if line.startswith("## ")]
    assert [title.split(",")[0].split(" (")[0] for title in titles] == [
        "## Faults and actions",
        "## Partitions without an owner",
        "## Failover of the coordinator",
        "## Resources",
        "## Events",
    ]
    assert "1 consumer kill" in page
    assert "decided after 190 ms (median)" in page
    assert "kill consumer:c1" in page


def test_broken_rules_come_first_in_the_report_with_their_evidence(night: Night) -> None:
    night.handed(11, "c1.11", T1, 50, 60)
    page = page_of(night)
    assert page.splitlines()[2] == "**1 rules were BROKEN**"
    assert page.index("## Broken rules: 1") < page.index("## Faults and actions")
    assert "c1.11.jsonl: handed out 50…59 by a call 0.100 s earlier" in page


def test_the_json_report_has_the_figures(night: Night) -> None:
    page_of(night)
    value = json.loads((night.directory / "report.json").read_text())
    assert (value["held"], value["seed"]) == (True, 7)
    rules = {rule["rule"]: rule for rule in value["rules"]}
    assert rules["a killed coordinator is replaced in time"]["figures"] == {"n": 1, "max_s": 5.0}
    assert {cost["cause"]: cost["n"] for cost in value["without_owner"]}["consumer kill"] == 1


def test_time_without_an_owner_counts_from_the_kill(night: Night) -> None:
    (cost,) = [cost for cost in night.judged().costs if cost.cause == "consumer kill"]
    assert (cost.n, cost.max_s) == (1, 6.0)


def test_time_without_an_owner_counts_from_the_freeze_and_not_from_its_discovery(night: Night) -> None:
    night.opened(114, "c3.14")
    night.event(115, Kind.FREEZE, "consumer:c2", Phase.BEGIN, pid=12)
    night.started(122, "c3.14", {T0: 120, T1: 100})
    night.event(125, Kind.FREEZE, "consumer:c2", Phase.END, pid=12)
    night.forget("c2.12 stopped t-0 t-1")
    night.lost(125.1, "c2.12", T0, T1)
    night.stopped(141, "c3.14", T0, T1)
    night.closed(141.5, "c3.14")
    report = night.judged()
    assert report.held
    (cost,) = [cost for cost in report.costs if cost.cause == "consumer freeze"]
    assert (cost.n, cost.p50_s, cost.max_s) == (2, 7.0, 7.0)
