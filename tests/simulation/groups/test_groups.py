"""Tests the simulator of client-assigned groups: invariants hold, a seed replays, and it finds each planted defect."""

from __future__ import annotations

import pytest

from tests.simulation.groups.history import FAULTS, TURMOIL_S, play
from tests.simulation.groups.planted import PLANTED
from tests.simulation.groups.run import caught_after, failing

SEEDS = 30
WITHIN_SEEDS = 300
FOUND_BY = {
    "members that were not heard get full sessions": 4,
    "heartbeats are answered without a proof while writes are refused": 4,
    "a commit under the old id is taken": 7,
    "a cooperative member keeps the partitions of an earlier topic": 5,
    "the base offset is not compared": 6,
    "the terms of an earlier producer id are not ended": 24,
    "answered before it is written": 39,
    "memory is read without a check of the term": 39,
    "a generation whose topic was hidden knows no id": 20,
    "batches of older terms are loaded": 11,
    "a newer term does not wait": 17,
}
"""The seeds that found the rarer defects (``scripts/simulate --groups --planted``). They run first, to save time."""


def test_invariants_hold_in_histories_with_faults() -> None:
    failed = failing(range(SEEDS), FAULTS, TURMOIL_S)
    assert failed == [], "\n".join(f"{one.broken}: scripts/simulate {one.options()}" for one in failed)


@pytest.mark.parametrize("seed", [3_102_602, 3_102_852])
def test_a_late_claim_and_a_znode_that_is_often_made_anew_are_no_violations(seed: int) -> None:
    """A claim that was sent in the turmoil ended a term of the calm period. And the znode was made anew so often that
    the claims caught up with the log only after the history."""
    assert play(seed)[0] == ""


def test_without_faults_clients_come_to_rest_and_commit() -> None:
    broken, history = play(7, frozenset())
    assert broken == ""
    assert len(history.judge.promised) > 30


def test_a_seed_replays_exactly() -> None:
    first, second = play(11)[1], play(11)[1]
    assert (first.story, first.digest()) == (second.story, second.digest())


@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_defect_is_found(name: str) -> None:
    seeds = sorted(range(WITHIN_SEEDS), key=lambda seed: (seed != FOUND_BY.get(name), seed))
    assert caught_after(name, seeds) is not None
