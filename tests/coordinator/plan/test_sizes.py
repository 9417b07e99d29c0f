"""Tests of the estimated sizes of large values, which are never smaller than the written values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from kafka_coord.coordinator.plan.member_update import ENVELOPE_BYTES, ledger_bytes, target_bytes
from kafka_coord.model import Assignment, Ledger, PartitionSet
from kafka_coord.model.json_fields import MAX_VALUE_BYTES, dump
from tests.model.values import assignments, ledgers, names

runs = st.builds(
    lambda first, numbers: {first + number for number in numbers},
    st.sampled_from([0, 95, 9_990, 2_147_483_500]),
    st.sets(st.integers(0, 120), min_size=1, max_size=40),
)
owned = st.builds(PartitionSet, st.dictionaries(names, runs, max_size=4))


def written(assignment: Assignment) -> int:
    """The bytes of the members and streams. The envelope covers the rest of the value."""
    rest = structs.replace(assignment, members={}, streams={})
    return len(dump(assignment.to_json())) - len(dump(rest.to_json())) - len(',"streams":{}')


@given(assignments())
def test_no_target_is_longer_than_its_estimate(assignment: Assignment):
    assert written(assignment) <= target_bytes(assignment) - ENVELOPE_BYTES


@given(st.dictionaries(names, owned, max_size=5))
def test_no_target_with_runs_and_gaps_is_longer_than_its_estimate(members: dict[str, PartitionSet]):
    assignment = Assignment(1, 1, "inputs", "sticky", "a reason", members)
    assert written(assignment) <= target_bytes(assignment) - ENVELOPE_BYTES


@given(ledgers())
def test_no_ledger_is_longer_than_its_estimate(ledger: Ledger):
    assert len(dump(ledger.to_json())) <= ledger_bytes(ledger)


def test_the_estimate_shows_that_a_target_of_runs_fits():
    members = {f"c{n:05}": PartitionSet({"flights": range(50 * n, 50 * n + 50)}) for n in range(5_000)}
    assignment = Assignment(1, 1, "inputs", "sticky", "a reason", members)
    assert len(dump(assignment.to_json())) < target_bytes(assignment) < MAX_VALUE_BYTES / 4


def test_a_target_that_could_be_too_long_is_measured_exactly():
    members = {f"c{n:05}": PartitionSet({"flights": range(n, 300_000, 1_000)}) for n in range(1_000)}
    assignment = Assignment(1, 1, "inputs", "sticky", "a reason", members)
    assert target_bytes(assignment) == len(dump(assignment.to_json())) + ENVELOPE_BYTES > MAX_VALUE_BYTES
