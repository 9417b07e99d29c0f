"""How the ranges of a micro-batch are packed into tasks."""

from __future__ import annotations

from kafka_coord.spark.options import SourceOptions
from kafka_coord.spark.ranges import OffsetRanges
from kafka_coord.spark.source import tasks


def packed(*rows: tuple[str, int, int, int], **options: str) -> list[tuple[tuple[str, int, int, int], ...]]:
    given = SourceOptions.of({"zookeeper": "zk:2181", "group": "g", "topics": "t", **options})
    return [task.ranges for task in tasks(OffsetRanges.of(rows), "broker:9092", given)]


def test_a_small_micro_batch_is_one_task_however_many_partitions_it_has() -> None:
    rows = [("t", partition, 10, 20) for partition in range(12)]
    assert packed(*rows) == [tuple(rows)]


def test_a_large_one_is_cut_into_two_of_the_same_size() -> None:
    assert packed(("t", 0, 0, 1_000), ("t", 1, 0, 9_000)) == [
        (("t", 0, 0, 1_000), ("t", 1, 0, 4_000)),
        (("t", 1, 4_000, 9_000),),
    ]


def test_min_partitions_decides_where_it_is_given() -> None:
    assert packed(("t", 0, 0, 4), minpartitions="2") == [(("t", 0, 0, 2),), (("t", 0, 2, 4),)]
    assert packed(minpartitions="2") == []
