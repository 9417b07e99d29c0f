"""Runs a minute of chaos with real processes, and migrations. ``scripts/chaos`` is the command for longer runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.judge import Report, judge
from tests.chaos.judge.findings import EVENT_RULES, Rule, Status
from tests.chaos.judge.phases import table

TIMED = {Rule.CLEAN_FAILOVER, Rule.KILLED_FAILOVER, Rule.FROZEN_COORDINATOR, Rule.NO_LEAKS, Rule.PAUSES}
"""The rules with a time limit, which a machine that also runs other tests cannot meet, and a rule that needs a longer
run."""
EXERCISED = {
    Rule.NOTHING_MISSING,
    Rule.ONE_OWNER,
    Rule.REPEATS,
    Rule.ORDER,
    Rule.CONVERGENCE,
    Rule.EVENT_RECORDS,
    Rule.EVENT_MEMBERSHIPS,
}


@pytest.mark.timeout(900)
def test_no_rule_is_broken_in_a_short_chaos_run(tmp_path: Path) -> None:
    # few records, so that other tests get the machine
    report = judged(tmp_path, EXERCISED, "run", "--minutes", "0.5", "--seed", "4", "--per-s", "100")
    assert sum(report.done.values()) > 12, report.done


@pytest.mark.long
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    ("seed", "options", "phases"),
    [(1, (), 6), (2, ("--kills",), 6), (3, ("--back",), 7), (4, ("--back", "--kills"), 7)],
)
def test_members_of_every_kind_read_on_while_their_cluster_migrates_to_kafka_4_and_back(
    tmp_path: Path, seed: int, options: tuple[str, ...], phases: int
) -> None:
    exercised = {*EXERCISED, Rule.MIGRATION, Rule.AUDIT, Rule.GROUP_LOG, Rule.TABLE} - EVENT_RULES
    report = judged(tmp_path, exercised, "migrate", "--seed", str(seed), *options)
    assert len(report.phases) == phases
    print("\n".join(table(report.phases)))  # noqa: T201 - the table of docs/migrating.md


@pytest.mark.long
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("kraft", [(), ("--kraft",)])
def test_a_group_moves_in_and_out_under_load_and_kills(tmp_path: Path, kraft: tuple[str, ...]) -> None:
    exercised = {Rule.NOTHING_MISSING, Rule.COMMITS, Rule.ORDER, Rule.ONE_OWNER, Rule.REPEATS, Rule.MOVES}
    report = judged(tmp_path, exercised, "moves", "--times", "10", "--members", "4", "--partitions", "60", *kraft)
    assert len(report.moves) == 20


def judged(directory: Path, exercised: set[Rule], command: str, *options: str) -> Report:
    """Lets chaos happen, and returns the judge's report. Fails if a rule is broken that has no time limit, or if there
    is no evidence about one of those ``exercised``."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.chaos", command, *options, "--dir", str(directory)],
        capture_output=True,
        text=True,
        timeout=2300,
        check=False,
    )
    assert run.returncode in {0, 10}, run.stderr[-3000:]
    report = judge(directory)
    page = (directory / "report.md").read_text()
    assert not {ruling.rule for ruling in report.rulings if ruling.status is Status.BROKEN} - TIMED, page
    assert exercised <= {ruling.rule for ruling in report.rulings if ruling.status is not Status.NOT_EXERCISED}, page
    return report
