"""Tests that ``roundrobin`` assigns all partitions in order to the members in turn."""

from __future__ import annotations

from kafka_coord.coordinator.assignors import RoundRobinAssignor
from tests.coordinator.assignors.build import group, written


def assign(subscriptions, topics):
    return written(RoundRobinAssignor().assign(group(subscriptions, topics)))


def test_partitions_of_all_topics_are_assigned_in_turn():
    assert assign({"c0": ["t0", "t1"], "c1": ["t0", "t1"]}, {"t0": 3, "t1": 3}) == {
        "c0": "t0[0,2] t1[1]",
        "c1": "t0[1] t1[0,2]",
    }


def test_members_that_do_not_subscribe_to_a_topic_are_skipped():
    # the example in Kafka's own documentation: t0 goes to c0, t1 to c1 and c2, and t2 only to c2
    assert assign({"c0": ["t0"], "c1": ["t0", "t1"], "c2": ["t0", "t1", "t2"]}, {"t0": 1, "t1": 2, "t2": 3}) == {
        "c0": "t0[0]",
        "c1": "t1[0]",
        "c2": "t1[1] t2[0-2]",
    }


def test_the_next_topic_continues_after_the_last_assigned_member():
    assert assign({"a": ["x"], "b": ["x", "y"], "c": ["y"]}, {"x": 1, "y": 3}) == {
        "a": "x[0]",
        "b": "y[0,2]",
        "c": "y[1]",
    }


def test_a_single_member_gets_all_partitions():
    assert assign({"c": ["x", "y"]}, {"x": 2, "y": 0}) == {"c": "x[0-1]"}
