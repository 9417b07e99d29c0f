"""Tests of how the ranges of a micro-batch are packed into tasks."""

from __future__ import annotations

from kafka_coord.spark.options import SourceOptions
from kafka_coord.spark.ranges import OffsetRanges
from kafka_coord.spark.source import tasks


def packed(*rows: tuple[str, int, int, int], **options: str) -> list[tuple[tuple[str, int, int, int], ...]]:
    given = SourceOptions.of({"zookeeper": "zk:2181", "group": "g", "topics": "t", **options})
    return [task.ranges for task in tasks(OffsetRanges.of(rows), "broker:9092", given)]


def test_a_small_micro_batch_of_many_partitions_is_one_task() -> None:
    rows = [("t", partition, 10, 20) for partition in range(12)]
    assert packed(*rows) == [tuple(rows)]


def test_a_large_micro_batch_is_divided_into_two_equal_tasks() -> None:
    assert packed(("t", 0, 0, 1_000), ("t", 1, 0, 9_000)) == [
        (("t", 0, 0, 1_000), ("t", 1, 0, 4_000)),
        (("t", 1, 4_000, 9_000),),
    ]


def test_min_partitions_determines_the_number_of_tasks_if_it_is_set() -> None:
    assert packed(("t", 0, 0, 4), minpartitions="2") == [(("t", 0, 0, 2),), (("t", 0, 2, 4),)]
    assert packed(minpartitions="2") == []
