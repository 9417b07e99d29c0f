"""When a position passes offsets that hold no record, without a broker. Messages are made by hand."""

from __future__ import annotations

import pytest

from kafka_coord.consumer.stream_partitions import HeldPartition, Run, StreamPartitions
from tests.consumer.fetched import PARTITION, Message


class Stream:
    """A stream that holds one partition from offset 0, and the records that it has fetched."""

    def __init__(self) -> None:
        self.partitions = StreamPartitions(wake=lambda: None, changed=lambda: None)
        self.holding = HeldPartition(PARTITION, 0)
        self.partitions.hold([self.holding])
        self.partitions.begin([PARTITION])
        self.runs = self.partitions.runs

    def fetch(self, *offsets: int) -> None:
        self.runs.add(Run(self.holding, [Message(offset) for offset in offsets]))

    def reach(self, offset: int) -> None:
        self.runs.reached(self.holding, offset)

    def take(self, most: int) -> list[int]:
        self.partitions.mark_consumed()
        return [message.offset() for message in self.runs.take(most)]

    def iterate(self) -> int | None:
        message = self.runs.take_one()
        return None if message is None else message.offset()

    @property
    def to_commit(self) -> int | None:
        return self.partitions.uncommitted(auto_commit=True).get(PARTITION)


@pytest.fixture
def stream() -> Stream:
    return Stream()


def test_a_marker_is_passed_only_once_the_record_before_it_was_handed_out(stream: Stream):
    stream.fetch(0, 1, 2)
    stream.reach(4)  # a marker at 3
    assert stream.take(2) == [0, 1]
    assert (stream.holding.position, stream.to_commit) == (2, None)
    assert stream.take(2) == [2]
    assert stream.holding.position == 4


def test_a_marker_is_committed_only_once_the_record_before_it_is_consumed(stream: Stream):
    stream.fetch(0, 1, 2)
    stream.reach(4)
    assert stream.take(9) == [0, 1, 2]
    assert stream.to_commit is None
    stream.partitions.mark_consumed()
    assert stream.to_commit == 4


def test_a_marker_that_is_fetched_after_its_record_was_consumed_is_passed_at_once(stream: Stream):
    stream.fetch(0)
    assert stream.take(1) == [0]
    stream.partitions.mark_consumed()
    stream.reach(5_002)
    assert (stream.holding.position, stream.to_commit) == (5_002, 5_002)


def test_a_marker_that_is_fetched_while_its_record_is_in_hand_is_not_committed(stream: Stream):
    stream.fetch(0)
    assert stream.take(1) == [0]
    stream.reach(2)
    assert (stream.holding.position, stream.to_commit) == (2, None)


def test_iterating_passes_a_marker_with_the_last_record_of_the_run(stream: Stream):
    stream.fetch(0, 1)
    stream.reach(3)
    assert stream.iterate() == 0
    stream.runs.account()
    assert (stream.holding.position, stream.to_commit) == (1, None)
    assert stream.iterate() == 1
    stream.runs.account()
    assert (stream.holding.position, stream.to_commit) == (3, 1)
    assert stream.iterate() is None
    stream.partitions.mark_consumed()
    assert stream.to_commit == 3


def test_a_marker_is_passed_when_it_is_fetched_during_the_iteration_of_its_run(stream: Stream):
    stream.fetch(0, 1)
    assert [stream.iterate(), stream.iterate()] == [0, 1]
    stream.reach(3)
    assert (stream.holding.position, stream.to_commit) == (3, 1)


def test_records_after_a_gap_are_handed_out_and_the_gap_is_passed_with_them(stream: Stream):
    stream.fetch(0)
    stream.reach(6)
    stream.fetch(6, 7)
    assert stream.take(1) == [0]
    assert stream.take(9) == [6, 7]
    assert stream.holding.position == 8
    stream.partitions.mark_consumed()
    assert stream.to_commit == 8


def test_what_the_application_commits_is_stored_as_it_is_and_leaves_nothing_in_hand(stream: Stream):
    stream.fetch(0, 1)
    stream.reach(3)
    stream.take(9)
    stream.partitions.ask(stream.holding, 2)
    assert not stream.partitions.in_hand()
    assert stream.partitions.uncommitted(auto_commit=False) == {PARTITION: 2}


def test_a_commit_of_everything_consumed_passes_the_markers(stream: Stream):
    stream.fetch(0, 1)
    stream.reach(3)
    stream.take(9)
    assert stream.partitions.snapshot(with_in_hand=True) == {PARTITION: 3}


def test_a_seek_forgets_where_the_fetcher_stood(stream: Stream):
    stream.fetch(0, 1)
    stream.reach(5_002)
    stream.take(9)
    stream.partitions.mark_consumed()
    stream.partitions.seek(stream.holding, 1)
    assert stream.holding.position == stream.holding.fetch_from == 1
    stream.reach(1)
    assert stream.holding.position == 1


def test_a_partition_without_records_begins_behind_its_markers():
    stream = Stream()
    stream.partitions.seek(stream.holding, -1)
    stream.reach(7)
    assert (stream.holding.position, stream.to_commit) == (7, 7)


def test_markers_alone_are_no_uncommitted_records_of_a_lost_membership(stream: Stream):
    stream.fetch(0)
    stream.take(1)
    stream.partitions.ask(stream.holding, 1)
    stream.partitions.stored({PARTITION: 1})
    stream.reach(3)
    stream.partitions.abandon()
    assert not stream.partitions.lost_uncommitted


def test_a_commit_from_before_a_seek_back_that_arrives_late_does_not_keep_the_position(stream: Stream):
    """Over a socket, several commits can be under way."""
    stream.fetch(*range(10))
    stream.take(7)
    stream.take(9)
    assert stream.to_commit == 7
    stream.partitions.mark_consumed()
    assert stream.to_commit == 10
    stream.partitions.seek(stream.holding, 4)
    stream.fetch(4, 5, 6)
    stream.take(9)
    stream.partitions.mark_consumed()
    stream.partitions.stored({PARTITION: 7})
    stream.partitions.stored({PARTITION: 10})
    assert stream.to_commit == 7
    stream.partitions.stored({PARTITION: 7})
    assert stream.to_commit is None


def test_a_position_is_committed_although_it_equals_the_stored_offset_if_another_commit_is_under_way(stream: Stream):
    stream.partitions.stored({PARTITION: 0})
    stream.fetch(0, 1, 2)
    stream.take(3)
    assert stream.take(1) == []
    assert stream.to_commit == 3, "it is sent, and nobody knows yet whether it is stored"
    stream.holding.move_to(0)
    assert stream.to_commit == 0, "otherwise, a consumer that leaves now would come back at 3"
    stream.partitions.stored({PARTITION: 3})
    assert stream.to_commit == 0
    stream.partitions.stored({PARTITION: 0})
    assert stream.to_commit is None
