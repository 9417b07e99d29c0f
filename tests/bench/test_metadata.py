"""The bench of the mirror: a small run of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import run


@pytest.mark.zookeeper
def test_a_small_run_changes_the_source_without_a_rebalance_and_sees_new_partitions(tmp_path: Path) -> None:
    found = run("bench", "metadata", "--smoke", "--dir", str(tmp_path), "-o", "json").json()
    (changed,) = found["change_of_source"]
    assert (changed["groups"], changed["rewritten"]) == (3, 0)
    assert [row["how"] for row in found["new_partition"]] == ["by asking", "by a request"]
    assert len(found["cost"]) == 3
    assert found["bars"] == []
