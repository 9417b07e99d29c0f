"""Tests that groups move between brokers and instances under faults, and that planted defects of moves are found."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafka_coord.frontends.kafka import moving
from kafka_coord.frontends.kafka.moving import Moves
from tests.simulation.groups.moves import FAULTS, play

SEEDS = 12
DEPOSED = 181
"""There, an instance records under a term that another one has claimed in vain."""
WITHIN_SEEDS = 40


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    gc.collect()


def test_no_acknowledged_commit_is_lost_or_goes_back_and_no_move_is_stuck() -> None:
    histories = [play(seed) for seed in (*range(SEEDS), DEPOSED)]
    assert [f"seed {history.seed}: {broken}" for broken, history in histories if broken] == []
    moved = sum((history.moved for _, history in histories), start=histories[0][1].moved.__class__())
    assert min(moved["take_over"], moved["give_back"]) > 5


def test_a_history_without_faults_moves_the_group_again_and_again() -> None:
    broken, history = play(3, frozenset())
    assert broken == ""
    assert min(history.moved["take_over"], history.moved["give_back"]) > 2


def _released_at_once(patch: pytest.MonkeyPatch) -> None:
    """The first to arrive gets everything."""
    patch.setattr(moving, "_longest_s", lambda _group: 0.0)


def _undone_once(patch: pytest.MonkeyPatch) -> None:
    """Whoever cannot undo a move does not try again."""

    async def resolved(self: Any, name: str, move: str) -> None:
        del self, name, move

    patch.setattr(Moves, "_resolved", resolved)


PLANTED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], int]] = {
    "the first to return gets everything": (_released_at_once, 6),
    "a move that cannot be undone is left as it is": (_undone_once, 1),
}
"""Defects, each with a seed that finds it."""


@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_defect_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, found_by = PLANTED[name]
    plant(monkeypatch)
    assert any(play(seed, FAULTS)[0] for seed in (found_by, *range(WITHIN_SEEDS)))
