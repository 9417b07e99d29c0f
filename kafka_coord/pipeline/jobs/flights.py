"""The job ``flights``: departures, as JSON, into a table that holds each of them once.

What the table says, added up, is :mod:`kafka_coord.pipeline.jobs.delays`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FLIGHT = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
    "arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, air_time int, "
    "distance int, hour int, minute int, time_hour timestamp"
)
"""A record's JSON. Delays are minutes; ``hour`` and ``minute`` are of the scheduled departure, ``time_hour`` is UTC."""

KEPT = ("carrier", "flight", "tailnum", "origin", "dest", "distance", "hour", "dep_delay", "arr_delay")


def decoded(rows: DataFrame) -> DataFrame:
    """Each record of a micro-batch as one row: where it is from, the flight, and ``departure``, its event time.

    What is no flight keeps its row, with the ``problem`` and the record's ``raw`` bytes: it is counted, and can be
    looked into.
    """
    from pyspark.sql import functions as f

    flight = f.from_json(
        f.col("value").cast("string"), f"{FLIGHT}, broken string", {"columnNameOfCorruptRecord": "broken"}
    )
    problem = (
        f.when(f.col("value").isNull(), "no value")
        .when(f.col("read.broken").isNotNull(), "not the JSON of a flight")
        .when(
            f.col("read.carrier").isNull() | f.col("read.origin").isNull() | f.col("read.time_hour").isNull(),
            "no airline, airport or time",
        )
    )
    return (
        rows.withColumn("read", flight)
        .withColumn("problem", problem)
        .select(
            "topic",
            "partition",
            "offset",
            "timestamp",
            *(f.when(f.col("problem").isNull(), f.col(f"read.{name}")).alias(name) for name in KEPT),
            f.when(
                f.col("problem").isNull(),
                f.col("read.time_hour") + f.make_interval(mins=f.coalesce(f.col("read.minute"), f.lit(0))),
            ).alias("departure"),
            "problem",
            f.when(f.col("problem").isNotNull(), f.col("value")).alias("raw"),
        )
    )
