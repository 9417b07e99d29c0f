"""Tests that something may happen at each step of a conversion with members, and that planted defects are found."""

from __future__ import annotations

import pytest

from kafka_coord.model import GroupKind
from tests.simulation.groups.conversions import FAULTS, play
from tests.simulation.groups.planted_conversions import PLANTED, planted

pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""A process may be killed between any two of its steps."""
SEED = 1
KINDS = [GroupKind.MANAGED, GroupKind.CLIENT_ASSIGNED]


@pytest.mark.parametrize("to", KINDS)
def test_whatever_happens_at_a_step_the_group_is_as_before_or_converted(to: GroupKind) -> None:
    """A different thing happens at each step: see the long test for all of them."""
    broken, history = play(SEED, to)
    assert (broken, history.steps >= 8) == ("", True), history.story
    for at in range(history.steps):
        broken, found = play(SEED, to, FAULTS[at % len(FAULTS)], at)
        assert not broken, found.story


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("to", KINDS)
def test_everything_happens_at_every_step(to: GroupKind, fault: str, seed: int) -> None:
    steps = play(seed, to)[1].steps
    broken = {at: found for at in range(steps) if (found := play(seed, to, fault, at)[0])}
    assert not broken


@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_defect_is_found(name: str) -> None:
    _, to, fault = PLANTED[name]
    with planted(name):
        broken, history = play(SEED, to)
        steps = reversed(range(history.steps)) if fault else ()
        assert broken or any(play(SEED, to, fault, at)[0] for at in steps)
