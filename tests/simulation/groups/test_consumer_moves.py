"""Tests that groups of KIP-848 members move between brokers and instances under faults, and that planted defects of
that are found."""

from __future__ import annotations

import pytest

from tests.simulation.groups.consumer_moves import UnheardHistory, play, played
from tests.simulation.groups.planted_moves import OF_CONSUMERS, planted

pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""A process may be killed between any two of its steps."""
SEEDS = 4
UNHEARD = range(4, 6)
FOUND_BY = {
    "an answer in flight gives partitions away after the freeze": (1, "slow"),
    "an old epoch counts as having joined again": (3, "slow"),
    "ids count as given up before they are": (1, ""),
    "the first to return gets everything": (1, ""),
    "offsets are read before the freeze": (3, ""),
}
"""The seeds that find defects, and the faults that reveal them soon. They run first, to save time."""
WITHIN_SEEDS = 12


def test_no_commit_is_lost_no_partition_has_two_readers_and_no_move_is_stuck() -> None:
    histories = [play(seed) for seed in range(SEEDS)]
    assert [f"seed {history.seed}: {broken}" for broken, history in histories if broken] == []
    for verb in ("take_over", "give_back_consumers"):
        assert sum(history.moved[verb] for _, history in histories)


def test_an_instance_without_a_session_gives_nothing_away_while_the_fence_enters() -> None:
    assert [played(UnheardHistory(seed))[0] for seed in UNHEARD] == ["", ""]


@pytest.mark.parametrize("name", OF_CONSUMERS)
def test_each_planted_defect_is_found(name: str) -> None:
    with planted(name, OF_CONSUMERS):
        if name not in FOUND_BY:
            assert any(played(UnheardHistory(seed))[0] for seed in reversed(UNHEARD))
            return
        first, faults = FOUND_BY[name]
        seeds = sorted(range(WITHIN_SEEDS), key=lambda seed: (seed != first, seed))
        assert any(play(seed, frozenset(filter(None, [faults])))[0] for seed in seeds)


@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_a_thousand_histories_hold() -> None:
    broken = {seed: found for seed in range(1_000) if (found := play(seed)[0])}
    assert not broken
