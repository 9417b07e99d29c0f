"""Runs a minute of chaos with real processes. ``scripts/chaos`` is the command for longer runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.judge import judge
from tests.chaos.judge.findings import Rule, Status

TIMED = {Rule.CLEAN_FAILOVER, Rule.KILLED_FAILOVER, Rule.FROZEN_COORDINATOR, Rule.NO_LEAKS}
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
    options = ("--minutes", "0.5", "--seed", "4", "--per-s", "100")  # few records, so that other tests get the machine
    run = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "run", *options, "--dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert run.returncode in {0, 10}, run.stderr[-3000:]
    report = judge(tmp_path)
    page = (tmp_path / "report.md").read_text()
    broken = {ruling.rule for ruling in report.rulings if ruling.status is Status.BROKEN}
    assert not broken - TIMED, page
    exercised = {ruling.rule for ruling in report.rulings if ruling.status is not Status.NOT_EXERCISED}
    assert exercised >= EXERCISED, page
    assert sum(report.done.values()) > 12, page
