"""The simulator can fail: each deliberate defect is caught within a bounded number of seeds."""

import logging
from collections.abc import Iterator

import pytest

from kafka_coord.dev.simulation.mutations import MUTATIONS, mutated
from kafka_coord.dev.simulation.world import judged

WITHIN_SEEDS = 150


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught(name: str) -> None:
    with mutated(name):
        assert any(judged(seed) is not None for seed in range(WITHIN_SEEDS))
