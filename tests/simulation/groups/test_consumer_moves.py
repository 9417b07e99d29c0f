"""Tests that groups of KIP-848 members move between brokers and instances under faults, and that planted defects of
that are found."""

from __future__ import annotations

from functools import partial

import pytest

from tests.simulation.groups.clients import SESSION_MS
from tests.simulation.groups.consumer_moves import ConsumerMoveHistory, MissingConsumers, UnheardHistory, play
from tests.simulation.groups.moves import played
from tests.simulation.groups.planted_moves import OF_CONSUMERS, planted

pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""A process may be killed between any two of its steps."""
SEEDS = 4
IN_FLIGHT = partial(UnheardHistory, in_flight=True)
FOUND_BY = {
    "what the broker gives away while the fence enters is passed on": (UnheardHistory, 29),
    "an answer in flight gives partitions away after the freeze": (IN_FLIGHT, 49),
    "an old epoch counts as having joined again": (partial(ConsumerMoveHistory, faults=frozenset({"slow"})), 16),
    "ids count as given up before they are": (partial(ConsumerMoveHistory, faults=frozenset()), 4),
    "the first to return gets everything": (partial(ConsumerMoveHistory, faults=frozenset()), 4),
    "offsets are read before the freeze": (partial(ConsumerMoveHistory, faults=frozenset()), 5),
}
"""The histories that reveal a defect soon, and a seed that does. It runs first, to save time."""
WITHIN_SEEDS = 24


def test_no_commit_is_lost_no_partition_has_two_readers_and_no_move_is_stuck() -> None:
    histories = [play(seed) for seed in range(SEEDS)]
    assert [f"seed {history.seed}: {broken}" for broken, history in histories if broken] == []
    for verb in ("take_over", "give_back_consumers"):
        assert sum(history.moved[verb] for _, history in histories)


@pytest.mark.parametrize("history", [UnheardHistory, IN_FLIGHT])
def test_what_an_instance_passes_on_while_the_fence_enters_gives_nothing_away(history: type[UnheardHistory]) -> None:
    assert [played(history(seed))[0] for seed in (2, 3)] == ["", ""]


def test_a_give_back_waits_for_a_dead_member_until_its_session_has_ended() -> None:
    for seed in range(2):
        history = MissingConsumers(seed)
        assert played(history)[0] == ""
        assert history.returned_s == pytest.approx(SESSION_MS / 1000 + 3.0, abs=1.0)


@pytest.mark.parametrize("name", OF_CONSUMERS)
def test_each_planted_defect_is_found(name: str) -> None:
    history, first = FOUND_BY[name]
    with planted(name, OF_CONSUMERS):
        assert any(played(history(seed))[0] for seed in (first, *range(WITHIN_SEEDS)))


@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_a_thousand_histories_hold() -> None:
    broken = {seed: found for seed in range(1_000) if (found := play(seed)[0])}
    assert not broken
