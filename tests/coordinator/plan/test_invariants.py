"""Tests of the invariants in docs/design.md with random groups, faults and orders of events."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from kafka_coord.coordinator.plan.member_update import MemberUpdate
from tests.coordinator.plan import machines  # pytest would also run test cases imported by name
from tests.coordinator.plan.machines import SETTINGS, Group

_TIMEOUT_S = 600
"""A failure is shrunk for up to 300 s (Hypothesis' limit) before it is printed. Tests that pass take seconds."""
TestGroup = pytest.mark.timeout(_TIMEOUT_S)(machines.GROUP)
TestEagerGroup = pytest.mark.timeout(_TIMEOUT_S)(machines.EAGER_GROUP)


@pytest.mark.timeout(_TIMEOUT_S)
def test_a_defect_is_shrunk_to_a_short_story_that_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemberUpdate, "is_behind", lambda self, _target: bool(self.ledger.held))
    with pytest.raises(AssertionError) as failure:
        run_state_machine_as_test(Group, settings=settings(SETTINGS, database=None, stateful_step_count=12))
    story = "\n".join(failure.value.__notes__)
    assert "which the target leaves where it is" in str(failure.value)
    assert "state.begin(" in story
    assert story.count("state.") <= 6
