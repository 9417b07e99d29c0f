"""Writes the judge's report as a page and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.chaos.journal import Event
from tests.chaos.judge.findings import ChaosFinding, Rule, Severity, Status
from tests.chaos.judge.judging import Report
from tests.chaos.judge.moves import table as table_of_moves
from tests.chaos.judge.phases import table

REPORT_PAGE = "report.md"
REPORT_JSON = "report.json"
EVENTS_TITLE = "## Events (seconds of the run, UTC of the logs)"
_MOST_TOLD = 10


def write_report(report: Report, directory: Path) -> None:
    """Writes ``report.md`` and ``report.json``."""
    (directory / REPORT_PAGE).write_text("\n".join(_page(report)) + "\n", encoding="utf-8")
    (directory / REPORT_JSON).write_text(json.dumps(to_json(report), indent=1) + "\n", encoding="utf-8")


def to_json(report: Report) -> dict[str, Any]:
    """Returns the whole report except the list of events."""
    return {
        "held": report.held,
        "seed": report.run.seed,
        "commit": report.run.commit,
        "minutes": round(report.minutes, 2),
        "rules": [dataclasses.asdict(ruling) for ruling in report.rulings],
        "without_owner": [dataclasses.asdict(cost) for cost in report.costs],
        "done": report.done,
        "setup": dataclasses.asdict(report.run.setup),
    }


def _page(report: Report) -> Iterator[str]:
    run, setup = report.run, report.run.setup
    broken = [ruling for ruling in report.rulings if ruling.status is Status.BROKEN]
    idle = [ruling for ruling in report.rulings if ruling.status is Status.NOT_EXERCISED]
    verdict = "**every rule held**" if not broken else f"**{len(broken)} rules were BROKEN**"
    yield f"# Chaos run, seed {run.seed}"
    yield ""
    yield verdict + (f"; {len(idle)} rules had no evidence" if idle else "")
    yield ""
    yield (
        f"{report.minutes:.1f} minutes, {run.minutes:g} requested; commit {run.commit}; "
        f"{setup.cores} cores, {setup.memory_bytes / 2**30:.0f} GiB; "
        + ", ".join(f"{name} {version}" for name, version in setup.versions.items())
        + "; session timeouts "
        + ", ".join(f"{role} {ms} ms" for role, ms in setup.session_timeouts_ms.items())
    )
    yield ""
    yield "| rule | | evidence | bound |"
    yield "|---|---|---|---|"
    for ruling in report.rulings:
        yield f"| {ruling.rule} | {ruling.status} | {ruling.checked} | {ruling.bound} |"
    yield ""
    findings = [finding for ruling in report.rulings for finding in ruling.findings]
    for severity, title in (
        (Severity.VIOLATION, "Broken rules"),
        (Severity.EXCEPTION, "Exceptions known by design (docs/design.md, section 5)"),
        (Severity.WARNING, "Warnings"),
    ):
        yield from _told(title, [finding for finding in findings if finding.severity is severity])
    yield "## Faults and actions"
    yield ""
    yield ", ".join(f"{n} {label}" for label, n in report.done.items())
    yield ""
    yield "## Partitions without an owner, by cause"
    yield ""
    yield "| cause | n | p50 | p99 | max | alone: n | p50 | max |"
    yield "|---|---|---|---|---|---|---|---|"
    for cost in report.costs:
        yield (
            f"| {cost.cause} | {cost.n} | {_s(cost.p50_s)} | {_s(cost.p99_s)} | {_s(cost.max_s)} "
            f"| {cost.alone} | {_s(cost.alone_p50_s)} | {_s(cost.alone_max_s)} |"
        )
    yield ""
    yield "'alone': no other fault was under way. If faults overlap, the cause is the most likely one."
    yield ""
    yield from _figures(
        "Failover of the coordinator", report, (Rule.CLEAN_FAILOVER, Rule.KILLED_FAILOVER, Rule.FROZEN_COORDINATOR)
    )
    yield from _figures("Resources", report, (Rule.NO_LEAKS,))
    yield from _happened(report)
    if report.phases:
        yield from ("## Phases of the migration", "", *table(report.phases), "")
        for one in report.phases:
            yield from (f"{one.name}: doctor says", *(f"- {line}" for line in one.doctor), "")
    if report.moves:
        yield from ("## Moves", "", *table_of_moves(report.moves), "")
    yield EVENTS_TITLE
    yield ""
    yield "```text"
    for event in report.events:
        detail = " ".join(f"{name}={value}" for name, value in event.detail.items() if name not in {"pid", "offsets"})
        yield f"{event.t - run.started:8.1f}s  {_clock(event)}  {event.kind} {event.target} {detail}".rstrip()
    yield "```"


def _happened(report: Report) -> Iterator[str]:
    if not report.happened:
        return
    yield "## Events of the world"
    yield ""
    yield "| event | from | took | beside other faults | observed |"
    yield "|---|---|---|---|---|"
    for one in report.happened:
        begun = one.begin - report.run.started
        yield f"| {one.name} | {begun:.1f}s | {_s(one.end - one.begin)} | {_yes(one.disturbed)} | {one.told} |"
    yield ""


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def _figures(title: str, report: Report, rules: tuple[Rule, ...]) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    for ruling in report.rulings:
        if ruling.rule in rules:
            bound = f" (allowed: {ruling.bound})" if ruling.bound else ""
            yield f"- {ruling.rule}: {ruling.status}. {ruling.checked}{bound}"
    yield ""


def _told(title: str, findings: list[ChaosFinding]) -> Iterator[str]:
    if not findings:
        return
    yield f"## {title}: {len(findings)}"
    yield ""
    for finding in findings[:_MOST_TOLD]:
        yield f"- **{finding.rule}** · {finding.where}: {finding.message}"
        for evidence in finding.evidence:
            yield f"  - {evidence}"
    if len(findings) > _MOST_TOLD:
        yield f"- … and {len(findings) - _MOST_TOLD} more (report.json has them all)"
    yield ""


def _clock(event: Event) -> str:
    return datetime.fromtimestamp(event.wall, UTC).strftime("%H:%M:%S")


def _s(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
