"""A micro-batch in terms of offsets: the ranges that it covers, its rows that are not stored yet, and its key; and how
a query stops between two of them, so that no later owner rereads a record."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from kafka_coord.errors import SettingsError
from kafka_coord.model.names import legal
from kafka_coord.spark.ranges import OffsetRanges

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

KEY_COLUMNS = {"topic": "string", "partition": "int", "offset": "bigint"}
"""The columns that identify a record, with the names and types of Spark's Kafka source."""

_MOST_IN_A_CONDITION = 100

ForeachBatch = Callable[["DataFrame", int], None]
_POLL_S = 0.05
_IDLE_LOOKS = 10


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


class BetweenBatches:
    """Wraps a function for ``foreachBatch`` so that its query can be stopped cleanly.

    ``StreamingQuery.stop()`` alone may interrupt a micro-batch after its rows are written and before Spark has notified
    the source. The next owner of the partitions would then read the records again. This class lets the running batch
    finish. Spark marks a batch as done only when it plans the next one, so this class lets Spark plan the next batch,
    but does not run it.
    """

    def __init__(self, each: ForeachBatch) -> None:
        self._each = each
        self._stopping = threading.Event()
        self._between = threading.Event()
        self._gone = threading.Event()
        self._at_work = threading.Lock()

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        with self._at_work:
            if not self._stopping.is_set():
                return self._each(rows, batch_id)
        self._between.set()
        self._gone.wait(60.0)  # stop() ends the query during this wait
        raise RuntimeError(f"micro-batch {batch_id} was not started, because the query is stopping")

    def stop(self, query: StreamingQuery, timeout_s: float = 60.0) -> bool:
        """Stops the query. Returns true if it stopped between two micro-batches, and false if the running micro-batch
        took longer than ``timeout_s`` seconds. May also be called for a query that has already ended.
        """
        self._stopping.set()
        try:
            return self._await_between(query, time.monotonic() + timeout_s)
        finally:
            self._gone.set()
            query.stop()

    def _await_between(self, query: StreamingQuery, deadline: float) -> bool:
        idle = 0
        while query.isActive and time.monotonic() < deadline:
            if self._between.wait(_POLL_S):
                return True
            status = query.status
            # If no data is available and no batch is running, Spark has asked the source for new records and got none.
            # That request also told the source that all earlier batches are done.
            idle = idle + 1 if not status["isDataAvailable"] and not self._at_work.locked() else 0
            if idle >= _IDLE_LOOKS:
                return True
        return not query.isActive
