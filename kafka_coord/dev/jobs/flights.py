"""The job ``flights``: writes departures from JSON records to a table that contains each of them once.

:mod:`kafka_coord.dev.jobs.delays` summarises the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

    from kafka_coord.consumer.record import Record

FLIGHT = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
    "arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, air_time int, "
    "distance int, hour int, minute int, time_hour timestamp"
)
"""The schema of a record's JSON. Delays are in minutes, ``hour`` and ``minute`` are those of the scheduled departure,
and ``time_hour`` is in UTC."""

_TYPES = {field.partition(" ")[0]: field.partition(" ")[2] for field in FLIGHT.split(", ")}

_EPOCH = datetime.fromtimestamp(0, UTC)

NO_VALUE = "no value"
NO_FLIGHT = "not the JSON of a flight"
INCOMPLETE = "no airline, airport or time"

KEPT = ("carrier", "flight", "tailnum", "origin", "dest", "distance", "hour", "dep_delay", "arr_delay")


def decoded(rows: DataFrame) -> DataFrame:
    """Converts each record of a micro-batch to a row with its position, the flight, and its event time (``departure``).

    A record that is not a flight also becomes a row, with the ``problem`` and the record's ``raw`` bytes, so that it
    counts and can be inspected.
    """
    from pyspark.sql import functions as f

    flight = f.from_json(
        f.col("value").cast("string"), f"{FLIGHT}, broken string", {"columnNameOfCorruptRecord": "broken"}
    )
    problem = (
        f.when(f.col("value").isNull(), NO_VALUE)
        .when(f.col("read.broken").isNotNull(), NO_FLIGHT)
        .when(
            f.col("read.carrier").isNull() | f.col("read.origin").isNull() | f.col("read.time_hour").isNull(),
            INCOMPLETE,
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


def as_arrow(records: Iterable[Record]) -> pyarrow.Table:
    """Converts a plain consumer's records to the rows that Spark would write, so that a member without Spark can append
    to the same table (:meth:`~kafka_coord.spark.sinks.TableWriter.append_arrow`).
    """
    import pyarrow as pa

    integers = dict.fromkeys(("flight", "distance", "hour", "dep_delay", "arr_delay"), pa.int32())
    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            *((name, integers.get(name, pa.string())) for name in KEPT),
            ("departure", pa.timestamp("us", tz="UTC")),
            ("problem", pa.string()),
            ("raw", pa.binary()),
        ]
    )
    return pa.Table.from_pylist([_row(record) for record in records], schema=schema)


def _row(record: Record) -> dict[str, Any]:
    row: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": _time(record.timestamp_ms),
    }
    flight, problem = _read(record.value)
    if problem:
        return row | {"problem": problem, "raw": record.value}
    departure = datetime.fromisoformat(flight["time_hour"]) + timedelta(minutes=flight.get("minute") or 0)
    return row | {name: flight.get(name) for name in KEPT} | {"departure": departure}


def _time(ms: int | None) -> datetime | None:
    """Returns the time, or ``None`` for one that is unknown or beyond the years 1 to 9999."""
    try:
        return None if ms is None else _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None


def _read(value: bytes | None) -> tuple[dict[str, Any], str]:
    """Returns the flight as far as it is readable, and the problem with the record (or ``""``)."""
    if value is None:
        return {}, NO_VALUE
    try:
        flight = json.loads(value)
        if flight["time_hour"] is not None:
            datetime.fromisoformat(flight["time_hour"])
    except KeyError:
        return {}, INCOMPLETE
    except (ValueError, TypeError, RecursionError):
        return {}, NO_FLIGHT
    if not all(_fits(flight.get(name), kind) for name, kind in _TYPES.items()):
        return {}, NO_FLIGHT
    missing = any(flight.get(name) is None for name in ("carrier", "origin", "time_hour"))
    return flight, INCOMPLETE if missing else ""


def _fits(value: object, kind: str) -> bool:
    return value is None or (
        type(value) is int and -(2**31) <= value < 2**31 if kind == "int" else isinstance(value, str)
    )
