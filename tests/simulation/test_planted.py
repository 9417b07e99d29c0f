"""Tests that the audit finds defects that break a rule about ZooKeeper's contents, and that the table covers all
defects."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.mutations import mutated
from tests.simulation.planted import HEAD, Seen, likely_first, look, rows, write_table
from tests.simulation.rule_mutations import RULE_MUTATIONS


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ("an eager member starts before all have stopped", "eager-order"),
        ("partitions that stay are stopped", "needless-stop"),
        ("offsets reset while a partition is held", "operator-write-while-held"),
        ("a recreated topic starts at the old offsets", "earlier-topic"),
        ("members of a paused group receive commands", "pause-ignored"),
        ("a ledger and its command written in two transactions", "split-unit"),
        ("a step with an unreadable offset is left out of its plan", "two-holders"),
    ],
)
def test_the_audit_finds_a_defect_in_the_code(fault: str, rule: str) -> None:
    seen = look(fault, likely_first(fault, 200), budget_s=120)
    assert (seen.audit is not None, seen.rule) == (True, rule)


def test_the_table_has_every_defect_that_breaks_a_rule() -> None:
    assert set(RULE_MUTATIONS) - set(rows()) == set()


def test_the_table_is_written_after_its_text(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{HEAD}| no grace period | 1 | `pure` | old |\n| no epoch check | kept |\n")
    write_table([Seen("no grace period", simulator=3, audit=1, rule="split-unit")], page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert "| no grace period | 3 | `pure` | 1 (`split-unit`) |\n| no epoch check | kept |\n" in text
    assert "old" not in text


def test_a_planted_defect_ends_with_its_block() -> None:
    with mutated("a ledger and its command written in two transactions"):
        pass
    assert look("no epoch check", range(5), budget_s=20).simulator is not None
