"""Tests of decisions that need no server: ranges, planned micro-batches, a query's partitions, and options."""

from __future__ import annotations

import pytest

from kafka_coord.errors import MalformedValue, SettingsError
from kafka_coord.model import NO_OFFSET, StartPoint, TopicPartition
from kafka_coord.spark.holdings import BatchHoldings
from kafka_coord.spark.member import fair_shares
from kafka_coord.spark.options import SourceOptions, StartingOffsets
from kafka_coord.spark.ranges import OffsetRanges, PlannedBatch, require_group

A, B, C = (TopicPartition("flights", number) for number in range(3))


def ranges(**found: tuple[int, int]) -> OffsetRanges:
    return OffsetRanges({{"a": A, "b": B, "c": C}[name]: [span] for name, span in found.items()})


class TestRanges:
    def test_adjacent_and_overlapping_ranges_are_merged(self) -> None:
        assert OffsetRanges({A: [(5, 7), (0, 5), (9, 9)]}) == OffsetRanges({A: [(0, 7)]})

    def test_union_difference_and_intersection(self) -> None:
        assert ranges(a=(0, 10), b=(0, 5)) - ranges(a=(3, 4)) == OffsetRanges({A: [(0, 3), (4, 10)], B: [(0, 5)]})
        assert ranges(a=(0, 10)) & ranges(a=(8, 20), b=(0, 1)) == ranges(a=(8, 10))
        assert (ranges(a=(0, 10)) | ranges(b=(0, 1))).size == 11

    def test_a_round_trip_through_json(self) -> None:
        found = OffsetRanges({A: [(0, 3), (5, 9)], C: [(1, 2)]})
        assert OffsetRanges.from_json(found.to_json(), "here") == found

    @pytest.mark.parametrize(
        "value", [None, [], {"flights": {"0": [[3, 3]]}}, {"a/b": {"0": [[0, 1]]}}, {"flights": {"x": [[0, 1]]}}]
    )
    def test_an_invalid_value_is_refused(self, value: object) -> None:
        with pytest.raises(MalformedValue, match="here"):
            OffsetRanges.from_json(value, "here")


class TestPlannedBatch:
    def test_a_round_trip_through_json(self) -> None:
        batch = PlannedBatch("delays", 7, ranges(a=(0, 10), c=(3, 4)), "q1", 1_700_000_000_000)
        assert PlannedBatch.from_json(batch.to_json()) == batch

    def test_the_offset_of_another_source_is_refused(self) -> None:
        with pytest.raises(MalformedValue):
            PlannedBatch.from_json({"flights": {"0": 12}})
        with pytest.raises(MalformedValue, match="version 9"):
            PlannedBatch.from_json(PlannedBatch("delays").to_json() | {"version": 9})

    def test_the_checkpoint_of_another_group_is_refused(self) -> None:
        with pytest.raises(MalformedValue, match="checkpointLocation"):
            require_group(PlannedBatch("delays"), "others")


class TestHoldings:
    @pytest.fixture
    def held(self) -> BatchHoldings:
        """Holdings of A at offset 10, of B at 0, and of C, which never had a commit."""
        found = BatchHoldings(lambda: None)
        found.hold({A: StartPoint(10), B: StartPoint(0), C: StartPoint(NO_OFFSET)})
        found.begin([A, B, C])
        return found

    def test_a_planned_batch_is_in_hand_until_spark_is_done_with_it(self, held: BatchHoldings) -> None:
        assert held.take(ranges(a=(10, 20))) == ranges(a=(10, 20))
        held.stop([A])
        assert held.in_hand([A])
        assert not held.in_hand([B])
        assert held.uncommitted() == {}
        held.done()
        assert not held.in_hand([A])
        assert held.release([A]) == {A: 20}

    def test_partitions_to_be_stopped_or_at_another_offset_are_not_planned(self, held: BatchHoldings) -> None:
        held.stop([A])
        assert held.take(ranges(a=(10, 20), b=(5, 6))) == OffsetRanges()
        assert held.wanted() == {B: 0, C: NO_OFFSET}

    def test_a_batch_of_a_lost_membership_commits_nothing(self, held: BatchHoldings) -> None:
        held.take(ranges(a=(10, 20)))
        held.abandon()
        assert held.orphans_in_hand()
        held.hold({A: StartPoint(10)})
        held.begin([A])
        held.done()
        assert not held.orphans_in_hand()
        assert held.uncommitted() == {}
        assert held.wanted() == {A: 10}

    def test_records_that_an_earlier_run_completed_are_skipped_and_committed(self, held: BatchHoldings) -> None:
        assert held.skip(ranges(a=(5, 15), b=(3, 9), c=(0, 4))) == OffsetRanges({A: [(10, 15)]})
        assert held.wanted() == {A: 15, B: 0, C: NO_OFFSET}, "the offset of C was removed in the meantime"
        assert held.uncommitted() == {A: 15}

    @pytest.mark.parametrize("later_from_the_end", [True, False])
    def test_a_partition_that_came_later_has_an_option_of_its_own(self, later_from_the_end: bool) -> None:
        found = BatchHoldings(lambda: None, from_the_end=not later_from_the_end, later_from_the_end=later_from_the_end)
        found.hold({A: StartPoint(NO_OFFSET), B: StartPoint(NO_OFFSET, later=True), C: StartPoint(7, later=True)})
        assert found.starting() == {B if later_from_the_end else A}


def test_shares_are_fair_and_unused_parts_go_to_other_partitions() -> None:
    assert fair_shares({A: 100, B: 2, C: 100}, 20) == {A: 9, B: 2, C: 9}
    assert fair_shares({A: 1, B: 2}, 100) == {A: 1, B: 2}
    assert fair_shares({}, 10) == {}


class TestOptions:
    def given(self, **more: str) -> dict[str, str]:
        return {"zookeeper": "zk:2181", "group": "delays", "topics": "flights, fares", **more}

    def test_option_names_are_case_insensitive(self) -> None:
        found = SourceOptions.of(self.given(MAXOFFSETSPERTRIGGER="7", startingoffsets="EARLIEST"))
        assert (found.topics, found.max_offsets_per_trigger) == (("flights", "fares"), 7)
        assert found.starting_offsets is StartingOffsets.EARLIEST

    def test_librdkafkas_own_options_are_passed_on(self) -> None:
        found = SourceOptions.of(self.given(**{"kafka.security.protocol": "SSL"}))
        assert dict(found.kafka) == {"security.protocol": "SSL"}

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            ({"maxOffsetsPerTriger": "7"}, "unknown option 'maxoffsetspertriger'"),
            ({"maxOffsetsPerTrigger": "many"}, "'maxOffsetsPerTrigger' must be an integer"),
            ({"failOnDataLoss": "perhaps"}, "must be true or false"),
            ({"startingOffsets": '{"flights":{"0":1}}'}, "reset-offsets"),
            ({"subscribePattern": "f.*"}, "give one of"),
            ({"group": ""}, "'group' of format kafka_coord is missing"),
        ],
    )
    def test_the_error_for_an_invalid_option_names_it(self, more: dict[str, str], message: str) -> None:
        with pytest.raises(SettingsError, match=message.replace("(", r"\(")):
            SourceOptions.of(self.given(**more))
