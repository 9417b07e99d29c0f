"""The bench of backups: a small run, and what it reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import run


@pytest.mark.zookeeper
def test_a_small_run_restores_what_it_backed_up(tmp_path: Path):
    found = run("bench", "backup", "--smoke", "--dir", str(tmp_path), "-o", "json").json()
    assert [row["step"] for row in found["steps"]] == ["read", "write the file", "read the file", "restore"]
    assert found["bars"] == []
