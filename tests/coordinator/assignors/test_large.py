"""Tests that large groups move no more partitions than necessary. ``kafka-coord bench planner`` measures the time."""

from __future__ import annotations

import random

import pytest

from kafka_coord.coordinator.assignors import Assignor, built_in_assignors
from tests.coordinator.assignors.build import group, moves

ASSIGNORS = built_in_assignors()


def one_joins(assignor: Assignor, members: int, topics: dict[str, int]):
    subscribed = list(topics)
    before = assignor.assign(group({f"c{n:05}": subscribed for n in range(members)}, topics))
    return group({f"c{n:05}": subscribed for n in range(members + 1)}, topics, before.members)


@pytest.mark.parametrize("topics", [1, 100, 5000])
def test_a_member_that_joins_five_thousand_moves_only_its_share(topics):
    inputs = one_joins(ASSIGNORS["sticky"], 5000, {f"t{n}": 250_000 // topics for n in range(topics)})
    assert moves(inputs, ASSIGNORS["sticky"].assign(inputs)) <= 50


def test_a_group_of_five_thousand_members_with_different_subscriptions_is_assigned():
    pick = random.Random(7)
    topics = {f"t{n:02}": 2500 for n in range(100)}
    subscriptions = {f"c{n:05}": pick.sample(sorted(topics), 5) for n in range(5001)}
    first = {consumer: found for consumer, found in subscriptions.items() if consumer != "c00042"}
    before = ASSIGNORS["sticky"].assign(group(first, topics))
    joined = group(subscriptions, topics, before.members)
    after = ASSIGNORS["sticky"].assign(joined)
    assert moves(joined, after) <= 100
