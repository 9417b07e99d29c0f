"""A verb on groups touches two files: a patch that adds one is applied to a copy of the package, counted and run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.house.rooms import ROOT

PATCH = Path(__file__).with_name("a_verb.patch")
MOST_FILES = 2
USES = """
from unittest import mock

from click.testing import CliRunner

from kafka_coord.cli.groups import groups
from kafka_coord.errors import RequestRefused
from kafka_coord.groups import managed
from kafka_coord.groups.client_assigned import ClientAssignedVerbs
from kafka_coord.groups.requests import Acting
from kafka_coord.groups.verbs import VERBS
from kafka_coord.monitor.dashboard.operating import ACTIONS

verb, acting, done = VERBS["freeze"], Acting("alice@host", "moving disks", 1.0, print), []
with mock.patch.object(managed, "pause", lambda _, group, **why: done.append((group, why))):
    with mock.patch.object(managed.ManagedVerbs, "wait_settled", lambda *_: done.append("settled")):
        answer = verb.act(managed.ManagedVerbs(mock.Mock()), "delays", acting)
assert done == [("delays", {"by": "alice@host", "reason": "moving disks"}), "settled"], done
assert (answer.type, answer.result, answer.message) == ("freeze", "done", "group delays frozen"), answer
try:
    verb.act(ClientAssignedVerbs(mock.Mock()), "orders", acting)
except RequestRefused as refusal:
    assert "a client-assigned group cannot be frozen" in str(refusal), refusal
else:
    raise AssertionError("not refused")
assert ACTIONS["freeze"].summary == verb.summary
told = CliRunner().invoke(groups, ["freeze", "--help"])
assert told.exit_code == 0 and verb.summary in told.output, told
assert "kafka-coord groups freeze delays" in told.output, told
assert "freeze" in CliRunner().invoke(groups, ["--help"]).output
"""
"""The command line, the HTTP API and both kinds of groups have the verb."""


def test_a_verb_on_groups_touches_two_files(tmp_path: Path) -> None:
    touched = re.findall(r"^\+\+\+ b/(.+)$", PATCH.read_text(), re.MULTILINE)
    assert len(touched) <= MOST_FILES
    shutil.copytree(
        ROOT / "kafka_coord", tmp_path / "kafka_coord", ignore=shutil.ignore_patterns("__pycache__", "build", "dev")
    )
    subprocess.run(["git", "apply", str(PATCH)], cwd=tmp_path, check=True)
    run, environment = [sys.executable, "-c", USES], {"PYTHONPATH": str(tmp_path)}
    found = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
