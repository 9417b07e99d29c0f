"""The doctor names the groups that it cannot read from the brokers' own coordinator, and does not judge them."""

from __future__ import annotations

from tests.monitor.findings_table import native


def test_groups_that_cannot_be_read_are_named_and_nothing_is_said_to_be_well() -> None:
    (finding,) = native({"a": 0, "b": 0}, problem="COORDINATOR_NOT_AVAILABLE")()
    assert "groups a, b: COORDINATOR_NOT_AVAILABLE" in finding.what
