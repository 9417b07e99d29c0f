"""The simulator can fail: each deliberate defect is caught within a bounded number of seeds."""

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.cluster import run_history
from tests.simulation.faults import FAULTS
from tests.simulation.mutations import MUTATIONS, mutated

WITHIN_SEEDS = 200

TELLING = {
    "no token check": frozenset({"freeze", "close", "cut", "evict"}),
    "no incarnation check by the consumer": frozenset({"kill", "freeze"}),
    "bit cleared after looking": frozenset({"evict"}),
    "an acknowledgement called done before it is written": frozenset({"expire", "rebalance"}),
    "proof from when an answer is heard": frozenset({"freeze"}),
    "consumed meanwhile and called stored": frozenset({"cut", "grow", "rebalance"}),
}
"""Faults to look under for defects that others hide, for a while: with all of them it takes some hundred seeds."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught(name: str) -> None:
    with mutated(name):
        faults = TELLING.get(name, FAULTS)
        assert any(run_history(seed, faults) is not None for seed in range(WITHIN_SEEDS))
