"""Tests that a failure is reported with the shortest history, and that this history can be replayed."""

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.faults import FAULTS
from tests.simulation.mutations import mutated
from tests.simulation.shrinking import History, Played, play, shrink


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def _first_failure() -> Played:
    return next(played for seed in range(150) if (played := play(History(seed))).broken)


def test_the_shortest_history_fails_again_with_fewer_faults() -> None:
    with mutated("a stop acknowledged without stopping"):
        failed = _first_failure()
        shortest = shrink(failed, budget_s=20)
        again = play(shortest.history)
    assert shortest.cost() < failed.cost()
    assert again.broken == shortest.broken != ""
    assert again.cluster.story == shortest.cluster.story


def test_a_spared_fault_does_not_happen() -> None:
    met = play(History(3)).cluster.faults_met
    assert met > 0
    spared = play(History(3, spared=frozenset(range(1, 10_000))))
    assert spared.cost()[0] == 0
    assert not any("lost:" in line or "is killed" in line for line in spared.cluster.story)
    assert not any("fault:" in line for line in spared.cluster.story)


def test_the_options_of_a_history_name_only_what_differs_from_the_defaults() -> None:
    assert History(5).options() == "--seed 5 --story"
    fewer = History(5, FAULTS - {"kill"}, 100, frozenset({3, 1}))
    assert fewer.options().endswith("--turmoil 100 --spare 1,3")
    assert "kill" not in fewer.options()
