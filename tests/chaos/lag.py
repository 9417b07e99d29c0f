"""Computes the lag in chaos runs with Spark, which is the difference of produced and committed offsets.

``python -m tests.chaos lag RUN... --output DIR`` prints the worst lag of each consumer, and writes parquet data sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_coord.spark.jobs import Evidence, HeldPartition, ReadPosition, data_set, publishing, read_evidence
from tests.chaos.journal import read_produced, read_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """The evidence of a run: ZooKeeper's log, and each partition's end over time (``produced``, no group)."""

    logged: Evidence
    produced: Sequence[ReadPosition]


def read_run_evidence(directory: Path) -> RunEvidence:
    """Reads a run. Raises :class:`~kafka_coord.errors.MalformedValue` for a directory without a run."""
    run = read_run(directory)
    logs = [directory / name for name in run.zookeeper_logs]
    logged = read_evidence(logs, chroot=run.chroot, source=directory.resolve().name) if logs else Evidence()
    return RunEvidence(logged, list(_produced(directory, run.started_wall - run.started)))


def _produced(directory: Path, since_1970_s: float) -> Iterator[ReadPosition]:
    """Yields the acknowledged end of each partition, at most once a second."""
    source = directory.resolve().name
    seen: dict[tuple[str, int, int], ReadPosition] = {}
    for batch in read_produced(directory):
        at_ms = round((since_1970_s + batch.t) * 1000)
        for run in batch.runs:
            key = (*run.partition, at_ms // 1000)
            if key not in seen or seen[key].offset < run.end:
                seen[key] = ReadPosition(source, "", *run.partition, run.end, at_ms)
    yield from seen.values()


def write_lag(spark: SparkSession, runs: Sequence[RunEvidence], output: Path, *, every_s: int = 10) -> Path:
    """Writes the data sets ``lag`` (by group, owner and window of time) and ``laggards`` (the worst lag of each owner).
    Returns their directory."""
    positions = [one for run in runs for one in (*run.logged.positions, *run.produced)]
    holds = [one for run in runs for one in run.logged.holds]
    with publishing(output) as results:
        known = data_set(spark, results.directory / "positions", positions, ReadPosition)
        lag = lag_of(known, data_set(spark, results.directory / "holds", holds, HeldPartition), every_s).persist()
        try:
            results.write("lag", lag.orderBy("source", "group", "begin", "consumer"))
            results.write("laggards", _laggards(lag))
        finally:
            lag.unpersist()
    return results.directory


def lag_of(positions: DataFrame, holds: DataFrame, every_s: int) -> DataFrame:
    """Returns the lag (produced minus committed) at the end of each window of time. It covers the partitions with an
    earlier commit of the group, and sums by their owners at that time.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    every_ms = every_s * 1000
    place = ["source", "topic", "partition"]
    windowed = positions.withColumn("begin_ms", f.col("at_ms") - f.col("at_ms") % every_ms)
    ends = windowed.where("group = ''").groupBy(*place, "begin_ms").agg(f.max("offset").alias("end"))
    commits = (
        windowed.where("group <> ''")
        .groupBy("group", *place, "begin_ms")
        .agg(f.max_by("offset", "at_ms").alias("committed"))
    )
    # In a window without a commit or a record, the last known value still holds.
    spans = ends.groupBy("source").agg(f.min("begin_ms").alias("first"), f.max("begin_ms").alias("last"))
    grid = (
        commits.select("group", *place)
        .distinct()
        .join(spans, "source")
        .withColumn("begin_ms", f.explode(f.sequence("first", "last", f.lit(every_ms).cast("bigint"))))
        .drop("first", "last")
    )
    so_far = Window.partitionBy("group", *place).orderBy("begin_ms")
    known = (
        grid.join(ends, [*place, "begin_ms"], "left")
        .join(commits, ["group", *place, "begin_ms"], "left")
        .withColumn("end", f.last("end", ignorenulls=True).over(so_far))
        .withColumn("committed", f.last("committed", ignorenulls=True).over(so_far))
        .where("end IS NOT NULL AND committed IS NOT NULL")
        .withColumn("lag", f.greatest(f.col("end") - f.col("committed"), f.lit(0)))
        .withColumn("until_ms", f.col("begin_ms") + every_ms)
    )
    had = (
        known.join(holds.withColumnRenamed("begin_ms", "since_ms"), ["group", *place])
        .where("since_ms < until_ms AND (end_ms IS NULL OR end_ms >= until_ms)")
        .groupBy("group", *place, "begin_ms")
        .agg(f.max_by("consumer", "since_ms").alias("consumer"))
    )
    return (
        known.join(had, ["group", *place, "begin_ms"], "left")
        .groupBy("source", "group", f.coalesce("consumer", f.lit("(nobody)")).alias("consumer"), "begin_ms")
        .agg(f.sum("lag").alias("lag"), f.max("lag").alias("worst_partition"), f.count("*").alias("partitions"))
        .withColumn("begin", f.timestamp_millis("begin_ms"))
        .drop("begin_ms")
    )


def _laggards(lag: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return (
        lag.groupBy("source", "group", "consumer")
        .agg(
            f.max("lag").alias("most"),
            f.max_by("begin", "lag").alias("at"),
            f.round(f.avg("lag"), 1).alias("mean"),
            f.count("*").alias("windows"),
        )
        .orderBy("source", "group", f.desc("most"), "consumer")
    )
