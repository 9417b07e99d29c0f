"""Tests of ``sticky``: first balance, then the fewest moves, then nearby replicas, and always the same result."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_coord.coordinator.assignors import AssignmentInputs, StickyAssignor, Target
from kafka_coord.coordinator.plan.target import fault_in
from kafka_coord.model import PartitionSet
from tests.coordinator.assignors.build import group, moves, sizes, written


def assign(inputs: AssignmentInputs) -> Target:
    target = StickyAssignor().assign(inputs)
    assert fault_in(target, inputs) == ""
    return target


def test_a_first_assignment_is_balanced_and_consists_of_consecutive_partitions():
    target = assign(group({"c1": ["t"], "c2": ["t"], "c3": ["t"]}, {"t": 12}))

    assert written(target) == {"c1": "t[0-3]", "c2": "t[4-7]", "c3": "t[8-11]"}


def test_a_member_that_joins_gets_its_share_and_nothing_else_moves():
    before = {"c1": {"t": range(6)}, "c2": {"t": range(6, 12)}}
    inputs = group({"c1": ["t"], "c2": ["t"], "c3": ["t"]}, {"t": 12}, before)

    target = assign(inputs)

    assert sizes(target) == {"c1": 4, "c2": 4, "c3": 4}
    assert moves(inputs, target) == 4


def test_the_partitions_of_a_member_that_left_are_spread_and_nothing_else_moves():
    before = {"c1": {"t": range(4)}, "c2": {"t": range(4, 8)}}
    inputs = group({"c1": ["t"], "c2": ["t"]}, {"t": 12}, before)

    target = assign(inputs)

    assert sizes(target) == {"c1": 6, "c2": 6}
    assert moves(inputs, target) == 4


def test_a_member_with_an_extra_partition_keeps_it():
    before = {"c1": {"t": [0, 1]}, "c2": {"t": [2, 3, 4]}}
    inputs = group({"c1": ["t"], "c2": ["t"]}, {"t": 5}, before)

    assert moves(inputs, assign(inputs)) == 0


def test_each_topic_is_spread_over_the_members():
    target = assign(group({f"c{i}": ["busy", "quiet"] for i in range(4)}, {"busy": 8, "quiet": 8}))

    assert {len(found.of_topic("busy")) for found in target.members.values()} == {2}


def test_a_new_member_gets_partitions_of_every_topic():
    before = {"c1": {"a": range(6), "b": range(6)}, "c2": {"a": range(6, 12), "b": range(6, 12)}}
    target = assign(group({c: ["a", "b"] for c in ("c1", "c2", "c3")}, {"a": 12, "b": 12}, before))

    assert {topic: len(numbers) for topic, numbers in target.members["c3"].by_topic()} == {"a": 4, "b": 4}


def test_a_partition_with_two_owners_stays_with_the_first_and_missing_ones_are_dropped():
    before = {"c1": {"t": [0, 1, 99], "gone": [1]}, "c2": {"t": [1, 2, 3]}}
    target = assign(group({"c1": ["t"], "c2": ["t"]}, {"t": 4}, before))

    assert written(target) == {"c1": "t[0-1]", "c2": "t[2-3]"}


def test_members_with_disjoint_topics_are_balanced_separately():
    target = assign(group({"a1": ["a"], "a2": ["a"], "b1": ["b"]}, {"a": 4, "b": 9}))

    assert sizes(target) == {"a1": 2, "a2": 2, "b1": 9}


def test_a_member_that_subscribes_to_less_gets_more_of_it():
    # only c2 can take b, so c1 takes a
    target = assign(group({"c1": ["a"], "c2": ["a", "b"]}, {"a": 4, "b": 4}))

    assert sizes(target) == {"c1": 4, "c2": 4}


def test_racks_decide_between_equal_choices():
    replica_racks = {"t": {0: ["west"], 1: ["east"], 2: ["west"], 3: ["east"]}}
    target = assign(
        group({"c1": ["t"], "c2": ["t"]}, {"t": 4}, racks={"c1": "east", "c2": "west"}, replica_racks=replica_racks)
    )

    assert written(target) == {"c1": "t[1,3]", "c2": "t[0,2]"}


def test_an_extra_partition_goes_to_a_member_near_its_replicas():
    target = assign(
        group(
            {"c1": ["t"], "c2": ["t"]},
            {"t": 1},
            racks={"c1": "east", "c2": "west"},
            replica_racks={"t": {0: ["west"]}},
        )
    )

    assert written(target) == {"c1": "nothing", "c2": "t[0]"}


def test_balance_and_few_moves_have_priority_over_racks():
    replica_racks = {"t": {number: ["west"] for number in range(4)}}
    inputs = group(
        {"c1": ["t"], "c2": ["t"]},
        {"t": 4},
        {"c1": {"t": [0, 1]}, "c2": {"t": [2, 3]}},
        racks={"c1": "east", "c2": "west"},
        replica_racks=replica_racks,
    )

    assert moves(inputs, assign(inputs)) == 0


def test_distant_partitions_are_given_up_first():
    replica_racks = {"t": {0: ["west"], 1: ["east"], 2: ["east"], 3: ["east"]}}
    target = assign(
        group(
            {"c1": ["t"], "c2": ["t"]},
            {"t": 4},
            {"c1": {"t": [0, 1, 2]}, "c2": {"t": [3]}},
            racks={"c1": "east", "c2": "west"},
            replica_racks=replica_racks,
        )
    )

    assert written(target) == {"c1": "t[1-2]", "c2": "t[0,3]"}


def test_distant_partitions_are_given_up_first_even_with_different_subscriptions():
    replica_racks = {"t": {0: ["west"], 1: ["east"], 2: ["east"], 3: ["east"]}}
    target = assign(
        group(
            {"c1": ["t", "u"], "c2": ["t"]},
            {"t": 4, "u": 1},
            {"c1": {"t": [0, 1, 2, 3], "u": [0]}},
            racks={"c1": "east", "c2": "west"},
            replica_racks=replica_racks,
        )
    )

    assert written(target) == {"c1": "t[1-2] u[0]", "c2": "t[0,3]"}


def test_members_of_one_rack_share_the_nearby_partitions():
    target = assign(
        group(
            {"c0": ["t"], "c1": ["t"], "c2": ["t"]},
            {"t": 6},
            racks={"c1": "west", "c2": "west"},
            replica_racks={"t": {number: ["west"] for number in range(4)}},
        )
    )

    assert written(target) == {"c0": "t[4-5]", "c1": "t[0,2]", "c2": "t[1,3]"}


def test_racks_decide_between_equal_choices_even_with_different_subscriptions():
    replica_racks = {"t": {0: ["west"], 1: ["east"]}}
    target = assign(
        group(
            {"c1": ["t"], "c2": ["t", "u"], "c3": ["t"]},
            {"t": 2, "u": 1},
            racks={"c1": "east", "c3": "west"},
            replica_racks=replica_racks,
        )
    )

    assert written(target) == {"c1": "t[1]", "c2": "u[0]", "c3": "t[0]"}


def test_a_large_group_over_many_topics_still_fits_a_znode():
    topics = {f"a.rather.long.topic.name.{n:04}": 50 for n in range(1000)}
    subscribed = list(topics)
    target = assign(group({f"c{n:04}": subscribed for n in range(1000)}, topics))

    named = sum(len(found.topics) for found in target.members.values())
    assert named <= 2 * 1000
    assert set(sizes(target).values()) == {50}


_topics = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 9), min_size=1)


@st.composite
def groups(draw: st.DrawFn, *, uniform: bool, most: int = 6) -> AssignmentInputs:
    topics = draw(_topics)
    names = [f"c{n}" for n in range(draw(st.integers(1, most)))]
    some = st.sets(st.sampled_from(sorted(topics)), min_size=0 if not uniform else 1)
    everybody = draw(some)
    subscriptions = {name: sorted(everybody if uniform else draw(some)) for name in names}
    current: dict[str, set[tuple[str, int]]] = {}
    for topic, count in topics.items():
        for number in range(count + 2):
            owner = draw(st.sampled_from([*names, None, None]))
            if owner is not None:
                current.setdefault(owner, set()).add((topic, number))
    racks = draw(st.dictionaries(st.sampled_from(names), st.sampled_from(["east", "west"])))
    near = {
        topic: {n: draw(st.sets(st.sampled_from(["east", "west", "north"]))) for n in range(count)}
        for topic, count in topics.items()
        if draw(st.booleans())
    }
    held = {consumer: PartitionSet.of(found) for consumer, found in current.items()}
    return group(subscriptions, topics, held, racks=racks, replica_racks=near)


def _fewest_moves(inputs: AssignmentInputs) -> int:
    """The fewest moves, found by trying every way to distribute the extra partitions."""
    members = list(inputs.members)
    topics = set(inputs.subscriptions[members[0]])
    partitions = sum(len(inputs.topics[topic].partitions) for topic in topics)
    each, extra = divmod(partitions, len(members))
    kept = {}
    for consumer in members:
        valid = inputs.current_of(consumer).filter(topics.__contains__)
        kept[consumer] = sum(tp.partition in inputs.topics[tp.topic].partitions for tp in valid)
    return min(
        partitions - sum(min(kept[c], each + (c in lucky)) for c in members)
        for lucky in itertools.combinations(members, extra)
    )


@settings(max_examples=150)
@given(groups(uniform=True))
def test_equal_subscriptions_differ_by_one_at_most_and_move_the_fewest(inputs):
    target = assign(inputs)

    assert max(sizes(target).values()) - min(sizes(target).values()) <= 1
    assert moves(inputs, target) == _fewest_moves(inputs)


@settings(max_examples=150)
@given(groups(uniform=False))
def test_with_different_subscriptions_no_single_move_improves_the_balance(inputs):
    target = assign(inputs)

    load = sizes(target)
    for owner, partitions in target.members.items():
        for topic in partitions.topics:
            for other in inputs.members:
                if topic in inputs.subscriptions[other]:
                    assert load[owner] - load[other] <= 1, f"a partition of {topic} could go from {owner} to {other}"


@settings(max_examples=100)
@given(groups(uniform=False), st.randoms(use_true_random=False))
def test_the_result_does_not_depend_on_the_order_of_the_inputs(inputs, random):
    def shuffled(mapping):
        items = list(mapping.items())
        random.shuffle(items)
        return dict(items)

    other = replace(
        inputs,
        members=shuffled(inputs.members),
        topics=shuffled(inputs.topics),
        subscriptions={c: (*topics,) for c, topics in shuffled(inputs.subscriptions).items()},
        current=shuffled(inputs.current),
    )
    assert dict(assign(other).members) == dict(assign(inputs).members)


@settings(max_examples=100)
@given(groups(uniform=False))
def test_a_balanced_assignment_does_not_change(inputs):
    target = assign(inputs)

    assert assign(replace(inputs, current=target.members)).members == target.members


@pytest.mark.parametrize("uniform", [True, False])
def test_a_new_partition_moves_no_others(uniform):
    subscriptions = {f"c{n}": ["a", "b"] if uniform or n % 2 else ["a"] for n in range(7)}
    before = assign(group(subscriptions, {"a": 20, "b": 20}))
    inputs = group(subscriptions, {"a": 20, "b": 21}, before.members)

    assert moves(inputs, assign(inputs)) == 1
