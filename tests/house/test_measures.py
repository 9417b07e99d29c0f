"""The house grows no wider than it is: see :mod:`tests.house.measures`."""

from __future__ import annotations

import pytest

from tests.house.measures import MEASURES, ROOT


@pytest.mark.parametrize("measure", MEASURES)
def test_no_measure_is_worse_than_it_was(measure: str) -> None:
    measured, most, goal = MEASURES[measure]
    assert measured(ROOT) <= most, f"the goal is {goal}"
