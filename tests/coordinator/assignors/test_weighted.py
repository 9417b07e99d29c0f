"""Tests of ``weighted``: partitions in proportion to capacity, with few moves."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kafka_coord.coordinator.assignors import AssignmentInputs, Target, WeightedAssignor
from kafka_coord.coordinator.assignors.kept_partitions import components
from kafka_coord.coordinator.plan.target import fault_in
from tests.coordinator.assignors.build import group, moves, sizes


def assign(inputs: AssignmentInputs) -> Target:
    target = WeightedAssignor().assign(inputs)
    assert fault_in(target, inputs) == ""
    return target


def test_a_member_with_three_times_the_capacity_gets_three_times_the_partitions():
    target = assign(group({"big": ["t"], "small": ["t"]}, {"t": 12}, capacities={"big": 3}))

    assert sizes(target) == {"big": 9, "small": 3}


def test_the_member_with_the_largest_remainder_gets_the_extra_partition():
    # 10 partitions for capacities 3, 3 and 1: 4.29, 4.29, 1.43, so the member with .43 gets the tenth
    target = assign(group({"a": ["t"], "b": ["t"], "c": ["t"]}, {"t": 10}, capacities={"a": 3, "b": 3}))

    assert sizes(target) == {"a": 4, "b": 4, "c": 2}


def test_with_equal_remainders_a_member_with_an_extra_partition_keeps_it():
    inputs = group({"a": ["t"], "b": ["t"]}, {"t": 3}, {"a": {"t": [0]}, "b": {"t": [1, 2]}})

    assert moves(inputs, assign(inputs)) == 0


def test_a_member_that_joins_moves_only_its_share():
    inputs = group({"a": ["t"], "b": ["t"]}, {"t": 12}, {"a": {"t": range(12)}}, capacities={"a": 5})

    target = assign(inputs)

    assert sizes(target) == {"a": 10, "b": 2}
    assert moves(inputs, target) == 2


def test_a_member_with_nearly_the_maximum_capacity_gets_all_partitions():
    target = assign(group({"a": ["t"], "b": ["t"]}, {"t": 7}, capacities={"a": (1 << 63) - 1}))

    assert sizes(target) == {"a": 7, "b": 0}


def test_with_different_subscriptions_the_load_in_proportion_to_capacity_is_even():
    target = assign(group({"a": ["t"], "b": ["t", "u"], "c": ["u"]}, {"t": 12, "u": 6}, capacities={"a": 2, "b": 1}))

    assert sizes(target) == {"a": 9, "b": 5, "c": 4} or sizes(target) == {"a": 9, "b": 4, "c": 5}


_capacities = st.lists(st.integers(1, 1000), min_size=1, max_size=6)


@given(_capacities, st.integers(0, 60), st.data())
def test_each_members_number_is_within_one_of_its_exact_share_and_moves_are_minimal(capacities, partitions, data):
    names = [f"c{n}" for n in range(len(capacities))]
    owners = data.draw(st.lists(st.sampled_from(names), min_size=partitions, max_size=partitions))
    before = {name: {"t": [n for n, owner in enumerate(owners) if owner == name]} for name in names}
    weights = dict(zip(names, capacities, strict=True))
    inputs = group({name: ["t"] for name in names}, {"t": partitions}, before, capacities=weights)

    target = assign(inputs)

    for name, size in sizes(target).items():
        assert abs(size - partitions * weights[name] / sum(capacities)) < 1
    assert moves(inputs, target) == sum(
        max(0, size - len(inputs.current_of(name))) for name, size in sizes(target).items()
    )
    assert assign(replace(inputs, current=target.members)).members == target.members


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.sets(st.sampled_from("tuv"), min_size=1), min_size=1),
    st.dictionaries(st.sampled_from("tuv"), st.integers(0, 9), min_size=1),
    st.data(),
)
def test_with_different_subscriptions_no_single_move_improves_the_balance(subscriptions, topics, data):
    weights = {name: data.draw(st.integers(1, 9)) for name in subscriptions}
    inputs = group({c: sorted(found) for c, found in subscriptions.items()}, topics, capacities=weights)

    target = assign(inputs)

    load = sizes(target)
    for members, topics_of in components(inputs):
        if all(len(inputs.subscriptions[consumer]) == len(topics_of) for consumer in members):
            continue  # the test above covers the largest remainder
        for owner, other in itertools.permutations(members, 2):
            if any(topic in inputs.subscriptions[other] for topic in target.members[owner].topics):
                assert load[owner] * weights[other] <= (load[other] + 1) * weights[owner]
