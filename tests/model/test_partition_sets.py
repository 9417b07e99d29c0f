"""Tests that the operations on partition sets give the same results as those on plain sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafka_coord.model import NO_PARTITIONS, PartitionSet, TopicPartition

partitions = st.sets(
    st.builds(TopicPartition, st.sampled_from(["a", "b", "c"]), st.integers(min_value=0, max_value=6)), max_size=15
)


@given(partitions, partitions)
def test_operations_give_the_same_results_as_for_sets(one: set[TopicPartition], other: set[TopicPartition]) -> None:
    a, b = PartitionSet.of(one), PartitionSet.of(other)
    for found, wanted in ((a | b, one | other), (a - b, one - other), (a & b, one & other)):
        assert set(found) == wanted
        assert found == PartitionSet.of(wanted)
        assert hash(found) == hash(PartitionSet.of(wanted))
        assert len(found) == len(wanted)
        assert bool(found) == bool(wanted)
        assert all(numbers for _, numbers in found.by_topic()), "no topic may have an empty set of partitions"
    assert a.isdisjoint(b) == one.isdisjoint(other)
    assert (a == b) == (one == other)
    assert list(a.by_topic()) == sorted(a.unordered())


@given(partitions)
def test_operations_of_a_set_with_itself(one: set[TopicPartition]) -> None:
    a = PartitionSet.of(one)
    assert a - a == NO_PARTITIONS
    assert a | a == a & a == a


@given(st.lists(partitions, max_size=5))
def test_a_union_of_many_equals_successive_unions(sets: list[set[TopicPartition]]) -> None:
    assert set(PartitionSet.union(map(PartitionSet.of, sets))) == set().union(*sets)


@given(partitions)
def test_a_filter_keeps_or_removes_whole_topics(one: set[TopicPartition]) -> None:
    assert set(PartitionSet.of(one).filter("b".__eq__)) == {partition for partition in one if partition.topic == "b"}
