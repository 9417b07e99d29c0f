"""The batch job ``history``, which analyses the causes and costs of coordinator decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kafka_coord.spark.jobs.evidence import DecidedAt, Evidence, HeldPartition, ReadPosition
from kafka_coord.spark.jobs.publishing import publishing
from kafka_coord.spark.sinks.files import local_directory

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

RESULTS = "history"
"""The subdirectory for the results in a job's output directory."""

PARTS = ("rebalances", "without_owner", "decisions", "holds", "positions")

UNKNOWN = "unknown"
"""The cause assigned to decisions from releases that did not record causes."""

_SCHEMAS: Mapping[type[Any], str] = {
    DecidedAt: "source string, group string, generation bigint, epoch bigint, at_ms bigint, reason string, "
    "causes array<string>, assignor string, members int, partitions int, moved int, stopped_ms bigint, "
    "settled_ms bigint",
    HeldPartition: "source string, group string, topic string, partition int, consumer string, begin_ms bigint, "
    "end_ms bigint, ending string, members_left int",
    ReadPosition: "source string, group string, topic string, partition int, offset bigint, at_ms bigint",
}


@dataclass(frozen=True, slots=True)
class HistoryReport:
    """The result of the job: the amount of evidence, and the ``directory`` with a parquet data set for each of
    :data:`PARTS`.

    ``rebalances`` counts the decisions by group and ``cause``; a decision with several causes counts for each of
    them. ``without_owner`` shows how long partitions had no owner, by group and by how the last hold ended. The other
    data sets contain the evidence itself.
    """

    directory: Path
    decisions: int
    holds: int
    positions: int
    unreadable: int

    def read(self, part: str) -> pyarrow.Table:
        """Reads one of :data:`PARTS` without Spark."""
        import pyarrow.parquet as pq

        return pq.read_table(self.directory / part)


def write_history(spark: SparkSession, evidence: Evidence, output: str) -> HistoryReport:
    counts = {
        "decisions": len(evidence.decisions),
        "holds": len(evidence.holds),
        "positions": len(evidence.positions),
        "unreadable": evidence.unreadable,
    }
    with publishing(local_directory(output) / RESULTS) as results:
        decisions = data_set(spark, results.directory / "decisions", evidence.decisions, DecidedAt)
        holds = data_set(spark, results.directory / "holds", evidence.holds, HeldPartition)
        data_set(spark, results.directory / "positions", evidence.positions, ReadPosition)
        results.write("rebalances", _rebalances(decisions))
        results.write("without_owner", _without_owner(holds))
        results.summary = {"version": 1, **counts}
    return HistoryReport(results.directory, **counts)


def data_set(spark: SparkSession, folder: Path, rows: Sequence[Any], kind: type[Any]) -> DataFrame:
    """Writes the evidence of one ``kind`` to ``folder`` and returns it as a DataFrame. A log may contain too many rows
    to be sent with a task, so the evidence goes through a file."""
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

    causes = f.when(f.size("causes") > 0, f.col("causes")).otherwise(f.array(f.lit(UNKNOWN)))
    return (
        decisions.withColumn("cause", f.explode(causes))
        .groupBy("source", "group", "cause")
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
        .orderBy("source", "group", f.desc("decisions"), "cause")
    )


def _without_owner(holds: DataFrame) -> DataFrame:
    """Returns statistics on the gaps between the end of each hold and the beginning of the next (0 if they overlap). A
    hold that has ended and has no successor counts as ``not_taken_up``.
    """
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
