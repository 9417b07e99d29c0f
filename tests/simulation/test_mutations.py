"""Tests that the simulator finds each deliberate defect within a bounded number of seeds."""

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.cluster import run_history
from tests.simulation.faults import FAULTS
from tests.simulation.mutations import MUTATIONS, mutated
from tests.simulation.planted import FAULTS_UNDER, likely_first

WITHIN_SEEDS = 400


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_deliberate_defect_is_found(name: str) -> None:
    with mutated(name):
        faults = FAULTS_UNDER.get(name, FAULTS)
        assert any(run_history(seed, faults) is not None for seed in likely_first(name, WITHIN_SEEDS))
