"""Tests that groups move between brokers and instances under faults, and that planted defects of moves are found."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafka_coord.frontends.kafka import moving
from kafka_coord.frontends.kafka.moving import Fence, Moves
from kafka_coord.frontends.kafka.native import Kinds
from kafka_coord.zk.kinds import record_kind
from tests.simulation.groups.moves import FAULTS, play

SEEDS = 12
WITHIN_SEEDS = 60


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    gc.collect()


def test_no_acknowledged_commit_is_lost_or_goes_back_and_no_move_is_stuck() -> None:
    histories = [play(seed) for seed in range(SEEDS)]
    assert [f"seed {seed}: {broken}" for seed, (broken, _) in enumerate(histories) if broken] == []
    moved = sum((history.moved for _, history in histories), start=histories[0][1].moved.__class__())
    assert min(moved["take_over"], moved["give_back"]) > 5


def test_a_history_without_faults_moves_the_group_again_and_again() -> None:
    broken, history = play(3, frozenset())
    assert broken == ""
    assert min(history.moved["take_over"], history.moved["give_back"]) > 2


def _offsets_before_the_freeze(patch: pytest.MonkeyPatch) -> None:
    read: dict[int, Any] = {}
    settled, offsets = Moves._settled, Moves._offsets

    async def settling(self: Any, name: str) -> Any:
        found = await settled(self, name)
        read[id(self)] = await offsets(self, found.node, name)
        return found

    async def read_before(self: Any, node: Any, name: str) -> Any:
        return read.pop(id(self)) if id(self) in read else await offsets(self, node, name)

    patch.setattr(Moves, "_settled", settling)
    patch.setattr(Moves, "_offsets", read_before)


def _no_fence(patch: pytest.MonkeyPatch) -> None:
    """Both sides serve: what an instance that has not heard passes on, the broker takes."""

    async def entered(self: Any, name: str, _namesake: Any) -> Fence:
        return await Moves._new_fence(self, name)

    async def taken_over(self: Any, namesake: Any) -> Any:
        return True

    patch.setattr(Moves, "_entered", entered)
    patch.setattr(moving.Namesake, "is_closed", True)


def _whoever_does_not_acknowledge_is_ignored(patch: pytest.MonkeyPatch) -> None:
    _no_fence(patch)
    acknowledged = Kinds.acknowledged

    async def found(self: Any, partition: int, brokers: Any) -> Any:
        heard = await acknowledged(self, partition, brokers)
        newest = max((one for one in heard.values()), key=lambda one: one.seen, default=None)
        return heard if newest is None else dict.fromkeys(brokers, newest)

    patch.setattr(Kinds, "acknowledged", found)


def _released_at_once(patch: pytest.MonkeyPatch) -> None:
    """The first to arrive gets everything."""
    patch.setattr(moving, "_longest_s", lambda _group: 0.0)


def _an_undone_move_is_recorded(patch: pytest.MonkeyPatch) -> None:
    def recorded(store: Any, group: str, fence: Any, _expected: Any = None, **changes: Any) -> Any:
        return record_kind(store, group, fence, None, **changes)

    patch.setattr("kafka_coord.frontends.kafka.native.record_kind", recorded)


def _undone_once(patch: pytest.MonkeyPatch) -> None:
    """Whoever cannot undo a move does not try again."""

    async def resolved(self: Any, name: str, move: str) -> None:
        del self, name, move

    patch.setattr(Moves, "_resolved", resolved)


def _a_new_term_forgets_moves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Moves, "begin", lambda _self, _partition: None)


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "offsets are read before the freeze": _offsets_before_the_freeze,
    "there is no fence": _no_fence,
    "an instance that did not hear is ignored": _whoever_does_not_acknowledge_is_ignored,
    "the first to return gets everything": _released_at_once,
    "a move that cannot be undone is left as it is": _undone_once,
    "a new term forgets moves": _a_new_term_forgets_moves,
}


@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_defect_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[name](monkeypatch)
    assert any(play(seed, FAULTS)[0] for seed in range(WITHIN_SEEDS))
