"""A micro-batch in terms of offsets: the ranges that it covers, its rows that are not stored yet, and its key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from kafka_coord.errors import SettingsError
from kafka_coord.model.names import legal
from kafka_coord.spark.ranges import OffsetRanges

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY_COLUMNS = {"topic": "string", "partition": "int", "offset": "bigint"}
"""The columns that identify a record, with the names and types of Spark's Kafka source."""

_MOST_IN_A_CONDITION = 100

ForeachBatch = Callable[["DataFrame", int], None]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A batch to write, as :func:`exactly_once` passes it to your function: the ``rows`` that are not stored yet, the
    ``ranges`` to store together with their effect, and the batch's ``key``, which is the same for every retry with the
    same ranges.
    """

    rows: DataFrame
    ranges: OffsetRanges
    key: str
    batch_id: int


def exactly_once(group: str, write: Callable[[MicroBatch], None], done: Callable[[], OffsetRanges]) -> ForeachBatch:
    """Returns a function for ``foreachBatch`` that calls ``write`` with the rows that are not ``done`` yet. If all rows
    are done, it does not call ``write``.

    ``done`` reads the stored offsets from wherever ``write`` stores them. Each record takes effect exactly once if
    ``write`` stores ``batch.ranges`` in the same transaction as its effect. If several applications share the group,
    that transaction must also fail when another application has stored any of the ranges.
    """
    legal("group", group)

    def each_batch(rows: DataFrame, batch_id: int) -> None:
        rows = rows.persist()  # read the batch once, both for its offsets and for its effect
        try:
            there = offsets_of(rows)
            before = done() & there
            missing = there - before
            if missing:
                write(MicroBatch(outside(rows, before), missing, missing.key(group), batch_id))
        finally:
            rows.unpersist()

    return each_batch


def require_key_columns(rows: DataFrame) -> None:
    """Raises :class:`SettingsError` if a column that identifies a record is missing or has the wrong type."""
    types = dict(rows.dtypes)
    wrong = [
        f"{name} {kind} (is {types.get(name, 'missing')})"
        for name, kind in KEY_COLUMNS.items()
        if types.get(name) != kind
    ]
    if wrong:
        raise SettingsError(
            f"rows cannot be written exactly once without {', '.join(wrong)}; select the source's topic, partition "
            "and offset along with your own columns"
        )


def offsets_of(rows: DataFrame) -> OffsetRanges:
    """Returns the offsets that a batch covers: in each partition, every offset from the lowest to the highest. Gaps
    left by transactions, compaction or a filter count as covered, because this source and Spark's own source guarantee
    that a batch holds one contiguous range of each partition. Runs a Spark job.
    """
    from pyspark.sql import functions as f

    require_key_columns(rows)
    bounds = (
        rows.groupBy("topic", "partition").agg(f.min("offset").alias("low"), f.max("offset").alias("high")).collect()
    )
    return OffsetRanges.of((row["topic"], row["partition"], row["low"], row["high"] + 1) for row in bounds)


def outside(rows: DataFrame, ranges: OffsetRanges) -> DataFrame:
    """Returns the rows whose offsets are not within ``ranges``."""
    from pyspark.sql import functions as f

    listed = list(ranges.rows())
    if not listed:
        return rows
    if len(listed) <= _MOST_IN_A_CONDITION:
        return rows.where(~reduce(lambda a, b: a | b, (_within(*one) for one in listed)))
    # Join with a table: optimizing a condition of thousands of terms takes longer than filtering the rows.
    values = ", ".join(f"('{topic}', {partition}, {start}L, {end}L)" for topic, partition, start, end in listed)
    table = rows.sparkSession.sql(f"SELECT * FROM VALUES {values} AS done(t, p, low, high)")  # noqa: S608 - legal names
    same = (rows["topic"] == table["t"]) & (rows["partition"] == table["p"])
    inside = (rows["offset"] >= table["low"]) & (rows["offset"] < table["high"])
    return rows.join(f.broadcast(table), same & inside, "left_anti")


def _within(topic: str, partition: int, start: int, end: int) -> Column:
    from pyspark.sql import functions as f

    return (
        (f.col("topic") == topic)
        & (f.col("partition") == partition)
        & (f.col("offset") >= start)
        & (f.col("offset") < end)
    )
