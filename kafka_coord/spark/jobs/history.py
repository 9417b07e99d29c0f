"""The job ``history``: what a coordinator's decisions were about, what they cost, and who lagged when. A batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kafka_coord.spark.jobs.evidence import Decided, Evidence, Held, Judged, Position
from kafka_coord.spark.jobs.publishing import publishing
from kafka_coord.spark.sinks.files import local_directory

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

RESULTS = "history"
"""Where in a job's output directory its results are."""

PARTS = ("rebalances", "without_owner", "lag", "laggards", "judged", "decisions", "holds", "positions")

_REASONS = {
    "operator asked": "operator asked",
    "member joined": "(^|[; ,])members? [^;]*joined",
    "member left": "(^|[; ,])members? [^;]*left|no members left",
    "member evicted": "(^|[; ,])members? [^;]*evicted",
    "topic changed": "topics? [^;]*(grew|shrank|is new|is gone|deleted and created|changed)",
    "assignor changed": "assignor changed from",
}
"""Kind of reason → what its sentence matches; a decision may have several, and one with none is ``other``."""

_SCHEMAS: Mapping[type[Any], str] = {
    Decided: "source string, group string, generation bigint, epoch bigint, at_ms bigint, reason string, "
    "assignor string, members int, partitions int, moved int, stopped_ms bigint, settled_ms bigint",
    Held: "source string, group string, topic string, partition int, consumer string, begin_ms bigint, end_ms bigint, "
    "ending string, members_left int",
    Position: "source string, group string, topic string, partition int, offset bigint, at_ms bigint",
    Judged: "source string, cause string, n bigint, p50_s double, p99_s double, max_s double",
}


@dataclass(frozen=True, slots=True)
class HistoryReport:
    """What was read, how often, and in ``directory`` a parquet data set for each of :data:`PARTS`.

    ``rebalances``: decisions by group and kind of ``reason``. ``without_owner``: how long partitions had none, by group
    and how the last owner ended. ``lag``: by group, owner and window of time. ``laggards``: the worst of each owner.
    ``judged``: what the judges of chaos runs found in the consumers' own journals. The rest is the evidence itself.
    """

    directory: Path
    decisions: int
    holds: int
    positions: int
    unreadable: int

    def read(self, part: str) -> pyarrow.Table:
        """One of :data:`PARTS`, without Spark."""
        import pyarrow.parquet as pq

        return pq.read_table(self.directory / part)


def write_history(spark: SparkSession, evidence: Evidence, output: str, *, every_s: int = 10) -> HistoryReport:
    """Analyses the evidence; lag is looked at every so many seconds."""
    counts = {
        "decisions": len(evidence.decisions),
        "holds": len(evidence.holds),
        "positions": len(evidence.positions),
        "unreadable": evidence.unreadable,
    }
    with publishing(local_directory(output) / RESULTS) as results:
        decisions = _evidence(spark, results.directory / "decisions", evidence.decisions, Decided)
        holds = _evidence(spark, results.directory / "holds", evidence.holds, Held)
        positions = _evidence(spark, results.directory / "positions", evidence.positions, Position)
        _evidence(spark, results.directory / "judged", evidence.judged, Judged)
        results.write("rebalances", _rebalances(decisions))
        results.write("without_owner", _without_owner(holds))
        lag = _lag(positions, holds, every_s).persist()
        try:
            results.write("lag", lag.orderBy("source", "group", "begin", "consumer"))
            results.write("laggards", _laggards(lag))
        finally:
            lag.unpersist()
        results.summary = {"version": 1, **counts}
    return HistoryReport(results.directory, **counts)


def _evidence(spark: SparkSession, folder: Path, rows: list[Any], kind: type[Any]) -> DataFrame:
    """The rows as a data set of the results: a night has millions of them, too many to send along with each task."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    struct = cast("StructType", StructType.fromDDL(_SCHEMAS[kind]))
    schema = to_arrow_schema(struct)
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    folder.mkdir()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), folder / "part-0.parquet", row_group_size=100_000)
    return spark.read.schema(struct).parquet(folder.as_uri())


def _rebalances(decisions: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    matching = [f.when(f.col("reason").rlike(pattern), f.lit(kind)) for kind, pattern in _REASONS.items()]
    kinds = f.array_compact(f.array(*matching))
    return (
        decisions.withColumn("kinds", f.when(f.size(kinds) > 0, kinds).otherwise(f.array(f.lit("other"))))
        .withColumn("reason", f.explode("kinds"))
        .groupBy("source", "group", "reason")
        .agg(
            f.count("*").alias("decisions"),
            f.sum("moved").alias("moved"),
            f.count("settled_ms").alias("settled"),
            *(
                f.percentile_approx("settled_ms", share).alias(f"settled_{name}_ms")
                for name, share in (("p50", 0.5), ("p95", 0.95))
            ),
            f.max("settled_ms").alias("settled_max_ms"),
        )
        .orderBy("source", "group", f.desc("decisions"), "reason")
    )


def _without_owner(holds: DataFrame) -> DataFrame:
    """From the end of a hold to the beginning of the next, if nobody had the partition already. The last hold of a
    partition is followed by none, and counted as not taken up."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    partition = Window.partitionBy("source", "group", "topic", "partition").orderBy("begin_ms", "end_ms")
    ending = f.when(f.col("members_left") == 0, "the last member was gone").otherwise(f.col("ending"))
    gap = f.when(f.col("next_ms").isNotNull(), f.greatest(f.col("next_ms") - f.col("end_ms"), f.lit(0)))
    return (
        holds.withColumn("next_ms", f.lead("begin_ms").over(partition))
        .where("end_ms IS NOT NULL")
        .withColumn("ending", ending)
        .withColumn("gap_ms", gap)
        .groupBy("source", "group", "ending")
        .agg(
            f.count("gap_ms").alias("times"),
            f.count_if(f.col("next_ms").isNull()).alias("not_taken_up"),
            *(
                f.percentile_approx("gap_ms", share).alias(f"{name}_ms")
                for name, share in (("p50", 0.5), ("p99", 0.99))
            ),
            f.max("gap_ms").alias("max_ms"),
            f.sum("gap_ms").alias("total_ms"),
        )
        .orderBy("source", "group", "ending")
    )


def _lag(positions: DataFrame, holds: DataFrame, every_s: int) -> DataFrame:
    """At the end of each window of time: what was produced until then less what was committed, of each partition a
    group had committed before, added up by who had the partition then."""
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
    # Windows without a commit or a record count as well: what was last known holds on.
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
