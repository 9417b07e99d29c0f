"""Every plan of whole simulated histories, with faults: none breaks an invariant, whatever prefix of it is written."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from kafka_coord.coordinator import decide
from kafka_coord.coordinator.plan.invariants import violations
from tests.simulation.cluster import run_history
from tests.simulation.faults import FAULTS

SEEDS = range(40)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_no_plan_of_a_simulated_history_breaks_an_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    original = decide.plan
    plans, commanding = 0, 0
    broken: list[tuple[int, list[str]]] = []
    seed = 0

    def checked(observation: Any, assignors: Any) -> Any:
        nonlocal plans, commanding
        plan = original(observation, assignors)
        plans += 1
        commanding += any(getattr(step, "commands", ()) for step in plan.steps)
        found = violations(observation, plan)
        if found:
            broken.append((seed, found))
        return plan

    monkeypatch.setattr(decide, "plan", checked)
    for seed in SEEDS:
        assert run_history(seed, FAULTS) is None
    assert broken == []
    assert plans > 20 * len(SEEDS)
    assert commanding > 5 * len(SEEDS)
