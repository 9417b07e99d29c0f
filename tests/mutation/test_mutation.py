"""The mutation run changes one place at a time, and tells noticed changes from others."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.mutation import run
from tests.mutation.mutator import difference, sites
from tests.mutation.targets import ROOT

SOURCE = '''
"""Words are left alone."""
import logging

log = logging.getLogger(__name__)
LIMIT: int = 3


def decide(found, wanted):
    if found is not None and found < LIMIT:
        log.info("found %d", found + 1)
        self.count += 1
        return [found, wanted]
    raise ValueError(f"{found} of {LIMIT - 1}")
'''


def changes(source: str) -> list[tuple[str, str]]:
    tree = ast.parse(source)
    found = []
    for site in sites(tree):
        before, after = difference(tree, site)
        found.append((before[1:].strip(), after[1:].strip()))
    return found


def test_every_change_is_one_place_and_neither_words_nor_logging_are_changed() -> None:
    found = changes(SOURCE)
    assert ("if found is not None and found < LIMIT:", "if found < LIMIT:") in found
    assert ("if found is not None and found < LIMIT:", "if found is not None or found < LIMIT:") in found
    assert ("if found is not None and found < LIMIT:", "if found is not None and found <= LIMIT:") in found
    assert ("self.count += 1", "pass") in found
    assert ("return [found, wanted]", "return None") in found
    assert ("LIMIT: int = 3", "LIMIT: int = 4") in found
    assert len(found) == len(set(found)), "two changes are the same"
    assert not [before for before, _ in found if "log" in before or "raise" in before or "Words" in before]


def test_the_same_seed_draws_the_same_changes_and_a_larger_count_begins_with_them() -> None:
    first = run.drawn(10, 4, "kafka_coord/coordinator/plan")
    assert run.drawn(20, 4, "kafka_coord/coordinator/plan")[:10] == first
    assert run.drawn(10, 5, "kafka_coord/coordinator/plan") != first
    assert len({mutant.name for mutant in first}) == 10


TRIAL = """
import ast, sys
from pathlib import Path
from tests.mutation import mutator, trial
from tests.mutation.targets import ROOT, Target

trial.preload()
module = ROOT / "kafka_coord/coordinator/assignors/__init__.py"
tests = tuple(f"tests/coordinator/assignors/test_{name}.py" for name in ("range", "roundrobin", "weighted"))
target = Target("kafka_coord/coordinator/assignors", tests, 0)
tree = ast.Module([one for one in ast.parse(module.read_text()).body if isinstance(one, ast.ClassDef)][:4], [])
noticed = [
    trial.ended(trial.forked(lambda: trial.trial(target, module, site)), 60)
    for site in mutator.sites(tree) if site.kind == "compute"
]
unchanged = mutator.Site(-1, -1, "none", lambda node: node)
print(noticed, trial.ended(trial.forked(lambda: trial.trial(target, module, unchanged)), 60))
print(trial.ended(trial.forked(lambda: __import__("time").sleep(60) or 0), 0.3))
"""


def test_a_change_that_breaks_the_code_is_noticed_and_none_is_not() -> None:
    result = subprocess.run([sys.executable, "-c", TRIAL], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    trials, timed_out = result.stdout.splitlines()
    noticed, _, unchanged = trials.rpartition(" ")
    assert set(json.loads(noticed)) == {1}
    assert (unchanged, timed_out) == ("0", "None")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    file = tmp_path / "results.jsonl"
    told = [(1, "killed", "now", []), (2, "survived", "now", ["-a"]), (3, "killed", "old", [])]
    lines = [
        json.dumps(asdict(run.Tried(f"kafka_coord/channel/frames.py:{line}:1:not", outcome, 1.0, commit, change)))
        for line, outcome, commit, change in told
    ]
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def test_changes_tried_on_this_commit_are_not_tried_again_and_are_in_the_summary(results: Path) -> None:
    known = run.told_before(results, "now")
    assert [name[-7:] for name in known] == ["1:1:not", "2:1:not"]
    told = "\n".join(run.summary(known.values()))
    assert "| `kafka_coord/channel` | 2 | 1 | 1 | 0 | 50 % |" in told
    assert "not noticed: kafka_coord/channel/frames.py:2:1:not\n  -a" in told
