"""Tests that groups move between brokers and instances under faults, and that planted defects of moves are found."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.groups.clients import SESSION_MS
from tests.simulation.groups.moves import (
    PATIENT_MS,
    ChangedHistory,
    DeletedHistory,
    HeldHistory,
    LateHistory,
    MissingHistory,
    MoveHistory,
    NewerHistory,
    StrangerHistory,
    play,
    played,
)
from tests.simulation.groups.planted_moves import PLANTED, TELLING, planted

pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""A process may be killed between any two of its steps."""
SEEDS = 8
OVERTAKEN = 101
"""There, another instance takes the group over while one still tries to undo its own move."""
SLOW = 96, 99, 185
"""There, if requests are slow, a give-back begins before another one has ended, and requests of a take-over that is
undone arrive late."""
FOUND_BY = {
    "an instance that has not heard is not waited for": 5,
    "an acknowledgement does not wait for what is in flight": 2,
    "a move that an earlier term has begun is forgotten": 4,
    "an undone take-over does not wait for its members": 104,
    "a give-back does not wait for commits": 5,
    "the first to return gets everything": 1,
    "a newcomer is taken for a member that has not come back": 25,
    "a group that is given back is given back again": 96,
    "an instance tells offsets that were committed before a take-over it has not heard of": 161,
}
"""The seeds that found the rarer defects. They run first, to save time."""
WITHIN_SEEDS = 60
WRITTEN = {
    "sessions end while nobody can be heard": (HeldHistory, 0, "a session has ended"),
    "what ends one change of a group ends them all": (HeldHistory, 0, "has ended another one"),
    "members are of the newest generation that is known": (NewerHistory, 1, "told ILLEGAL_GENERATION"),
    "a give-back removes offsets by requests that nobody refuses": (LateHistory, 3, "although 99 was acknowledged"),
    "a generation begins while the fence enters": (StrangerHistory, 7, "stranger was given"),
    "who writes records after somebody has deleted them forgets what they were": (DeletedHistory, 28, "although 11"),
}
"""The defects that a history finds which was written for them, and what it then says."""


def test_no_commit_is_lost_no_partition_has_two_readers_and_no_move_is_stuck() -> None:
    histories = [play(seed) for seed in (*range(SEEDS), OVERTAKEN)]
    assert [f"seed {history.seed}: {broken}" for broken, history in histories if broken] == []
    moved: Counter[str] = sum((history.moved for _, history in histories), start=Counter())
    assert min(moved["take_over"], moved["give_back"]) > SEEDS


@pytest.mark.parametrize(("history", "seed"), [one[:2] for one in WRITTEN.values()])
def test_what_was_wrong_once_does_not_happen_again(history: type[MoveHistory], seed: int) -> None:
    assert played(history(seed))[0] == ""


def test_nobody_is_given_what_the_members_read_while_the_fence_enters() -> None:
    assert [played(StrangerHistory(seed))[0] for seed in range(8)] == [""] * 8


def test_a_move_goes_on_whenever_somebody_deletes_what_is_recorded() -> None:
    assert [played(DeletedHistory(seed))[0] for seed in range(8)] == [""] * 8


def test_requests_that_come_too_late_take_nothing_away() -> None:
    assert [play(seed, frozenset({"slow"}))[0] for seed in SLOW] == ["", "", ""]


def test_a_history_without_faults_moves_the_group_again_and_again() -> None:
    broken, history = play(3, frozenset())
    assert broken == ""
    assert min(history.moved["take_over"], history.moved["give_back"]) > 2


def test_a_give_back_does_not_wait_for_the_id_that_a_member_had_before_its_group_was_taken_over() -> None:
    for seed in range(3):
        history = ChangedHistory(seed)
        assert played(history)[0] == ""
        assert history.returned_s < SESSION_MS / 1000 / 2


@pytest.mark.parametrize("is_static", [False, True])
def test_a_give_back_waits_for_a_dead_member_until_its_session_has_ended(is_static: bool) -> None:
    for seed in range(3):
        history = MissingHistory(seed, is_static=is_static)
        assert played(history)[0] == ""
        assert history.returned_s == pytest.approx(SESSION_MS / 1000 + 3.0, abs=1.0)


def test_a_give_back_waits_for_a_member_that_is_heard_as_long_as_a_rebalance_may_take() -> None:
    for seed in range(3):
        history = MissingHistory(seed, 3 * SESSION_MS / 1000)
        assert played(history)[0] == ""
        assert 3 * SESSION_MS / 1000 <= history.returned_s < PATIENT_MS / 1000


@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_defect_is_found(name: str) -> None:
    seeds = FOUND_BY.get(name, 0), *range(WITHIN_SEEDS)
    with planted(name):
        if name in WRITTEN:
            history, seed, says = WRITTEN[name]
            assert says in played(history(seed))[0]
        else:
            assert any(play(seed, TELLING.get(name, frozenset()))[0] for seed in seeds)
