"""Tests that ``range`` gives the result of Kafka 0.8.2's RangeAssignor. All expected values were computed by hand:
n = P / T, extra = P % T, thread i of the sorted thread ids gets n (+ 1 if i < extra) from n * i + min(i, extra)."""

from __future__ import annotations

from kafka_coord.coordinator.assignors import RangeAssignor
from tests.coordinator.assignors.build import by_stream, group, written


def assign(subscriptions, topics, **kwargs):
    return RangeAssignor().assign(group(subscriptions, topics, **kwargs))


def test_the_example_in_kafkas_own_documentation():
    target = assign({"C1": {"t": 2}, "C2": {"t": 2}}, {"t": 5})

    assert by_stream(target, "t") == {"C1-0": [0, 1], "C1-1": [2], "C2-0": [3], "C2-1": [4]}


def test_three_members_and_twelve_partitions():
    target = assign({"c1": ["flights"], "c2": ["flights"], "c3": ["flights"]}, {"flights": 12})

    assert written(target) == {"c1": "flights[0-3]", "c2": "flights[4-7]", "c3": "flights[8-11]"}


def test_the_first_threads_get_the_remainder():
    # P=11, T=4: n=2, extra=3
    target = assign({f"c{i}": ["t"] for i in range(4)}, {"t": 11})

    assert written(target) == {"c0": "t[0-2]", "c1": "t[3-5]", "c2": "t[6-8]", "c3": "t[9-10]"}


def test_threads_are_sorted_by_thread_id_and_not_by_consumer():
    # the threads in order of strings are c-0 (of c), c-0-0, c-0-1 (of c-0), c-1 (of c); P=6: 2, 2, 1, 1
    target = assign({"c": {"t": 2}, "c-0": {"t": 2}}, {"t": 6})

    assert by_stream(target, "t") == {"c-0": [0, 1], "c-0-0": [2, 3], "c-0-1": [4], "c-1": [5]}
    assert written(target) == {"c": "t[0-1,5]", "c-0": "t[2-4]"}


def test_more_than_ten_threads_are_sorted_as_strings():
    # c-0 c-1 c-10 c-11 c-2 … c-9; P=14, T=12: n=1, extra=2
    target = assign({"c": {"t": 12}}, {"t": 14})

    assert by_stream(target, "t") == {
        "c-0": [0, 1],
        "c-1": [2, 3],
        "c-10": [4],
        "c-11": [5],
        "c-2": [6],
        "c-3": [7],
        "c-4": [8],
        "c-5": [9],
        "c-6": [10],
        "c-7": [11],
        "c-8": [12],
        "c-9": [13],
    }


def test_upper_case_comes_before_lower_case_and_dots_before_digits():
    # "C-0" < "c-0" < "c.x-0" < "c1-0": '-' is 2D, '.' is 2E, digits from 30, 'C' 43, 'c' 63
    target = assign({"c1": ["t"], "c.x": ["t"], "C": ["t"], "c": ["t"]}, {"t": 4})

    assert written(target) == {"C": "t[0]", "c": "t[1]", "c.x": "t[2]", "c1": "t[3]"}


def test_a_name_that_ends_in_a_hyphen_changes_the_order_of_threads_but_not_of_names():
    # by name "a" < "a-"; by thread "a--0" < "a-0" because '-' comes before '0'
    target = assign({"a": ["t"], "a-": ["t"]}, {"t": 3})

    assert written(target) == {"a": "t[2]", "a-": "t[0-1]"}


def test_with_more_threads_than_partitions_the_last_threads_get_none():
    # c1-0 c1-1 c2-0 c2-1; P=3, T=4: n=0, extra=3
    target = assign({"c1": {"t": 2}, "c2": {"t": 2}}, {"t": 3})

    assert by_stream(target, "t") == {"c1-0": [0], "c1-1": [1], "c2-0": [2]}


def test_the_target_also_names_a_member_without_partitions():
    target = assign({"c1": ["t"], "c2": ["t"], "c3": ["t"]}, {"t": 2})

    assert written(target) == {"c1": "t[0]", "c2": "t[1]", "c3": "nothing"}


def test_each_topic_is_divided_separately():
    # as in Kafka 0.8, c1 gets the remainder of every topic; sticky and roundrobin avoid that
    target = assign({"c1": ["a", "b", "x"], "c2": ["a", "b", "x"]}, {"a": 3, "b": 3, "x": 1})

    assert written(target) == {"c1": "a[0-1] b[0-1] x[0]", "c2": "a[2] b[2]"}


def test_different_stream_counts_for_different_topics():
    # a: c1-0 c1-1 c1-2 c2-0, P=8: 2 each. b: c1-0 c2-0 c2-1, P=7: 3, 2, 2
    target = assign({"c1": {"a": 3, "b": 1}, "c2": {"a": 1, "b": 2}}, {"a": 8, "b": 7})

    assert by_stream(target, "a") == {"c1-0": [0, 1], "c1-1": [2, 3], "c1-2": [4, 5], "c2-0": [6, 7]}
    assert by_stream(target, "b") == {"c1-0": [0, 1, 2], "c2-0": [3, 4], "c2-1": [5, 6]}


def test_only_subscribers_of_a_topic_get_its_partitions():
    target = assign({"c1": ["a"], "c2": ["a", "b"], "c3": ["b"]}, {"a": 4, "b": 3})

    assert written(target) == {"c1": "a[0-1]", "c2": "a[2-3] b[0-1]", "c3": "b[2]"}


def test_a_topic_without_partitions_is_assigned_to_no_member():
    target = assign({"c1": ["t"], "c2": ["t"]}, {"t": 0})

    assert written(target) == {"c1": "nothing", "c2": "nothing"}


def test_the_current_assignment_has_no_effect():
    with_history = assign({"c1": ["t"], "c2": ["t"]}, {"t": 4}, current={"c2": {"t": [0, 1, 2, 3]}})

    assert with_history == assign({"c1": ["t"], "c2": ["t"]}, {"t": 4})
