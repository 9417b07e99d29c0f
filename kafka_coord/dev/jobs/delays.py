"""Reports delays by airline, airport and hour, and the busiest routes, from the table of the job ``flights``.

This module computes the sums from the table, not with a streaming aggregation. Partitions move between the applications
of a group, but Spark keeps the state of an aggregation in the checkpoint of one application. When a partition moved, a
window would be split between two states; the new owner, if its other partitions are further ahead, would drop records
as late; and an application that restarts from its checkpoint would count records that the next owner also counts. The
table, however, is shared by all applications and contains each record once (:mod:`kafka_coord.spark.sinks`), so the
report can be computed at any time, and the same table always gives the same report.

Windows are of event time. Kafka orders records only within a partition, so each partition has its own watermark: its
latest event time minus the allowed delay. The report's watermark is the lowest of these, and a window that ends by then
is ``final``. A record that is later than allowed still counts, but also as ``late``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka_coord.dev.jobs.streaming import RECORDS
from kafka_coord.errors import MalformedValue, SettingsError
from kafka_coord.spark.jobs import last_published, publishing
from kafka_coord.spark.sinks import read_table
from kafka_coord.spark.sinks.files import local_directory

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

REPORTS = "reports"
"""The subdirectory for reports in a job's output directory."""

KEYS = {"airlines": "carrier", "airports": "origin", "hours": "hour"}
"""The parts of a report that show delays, each with the column it is grouped by. ``hour`` is the hour of the scheduled
departure, in local time."""
ROUTES = "routes"

_INTERVAL = re.compile(r"\d+ (?:second|minute|hour|day|week)s?")


@dataclass(frozen=True, slots=True)
class Windows:
    """The length of the windows and the allowed delay, in Spark's format (``1 day``), and the number of routes in the
    report. Raises :class:`SettingsError` for other formats."""

    window: str = "1 day"
    watermark_delay: str = "1 day"
    top: int = 10

    def __post_init__(self) -> None:
        for given in (self.window, self.watermark_delay):
            if not _INTERVAL.fullmatch(given) or (given is self.window and not int(given.split()[0])):
                raise SettingsError(f"{given!r} is not a length of time such as '1 day', '6 hours' or '30 minutes'")


@dataclass(frozen=True, slots=True)
class Summary:
    """What went into a report. Each of the table's ``records`` is either one of the ``flights`` or ``undecodable``.
    ``late`` flights exceeded the allowed delay. Windows are final up to ``watermark`` (event time, ISO, UTC), which is
    None without flights."""

    records: int
    flights: int
    undecodable: int
    late: int
    partitions: int
    watermark: str | None
    windows: Windows

    def to_json(self) -> dict[str, Any]:
        return {"version": 1} | asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> Summary:
        """Raises :class:`MalformedValue`."""
        try:
            given = dict(value)
            if given.pop("version") != 1:
                raise MalformedValue(where, f"has version {value['version']!r}; this release supports only 1")
            return cls(**given | {"windows": Windows(**given["windows"])})
        except (KeyError, TypeError) as error:
            raise MalformedValue(where, f"not the summary of a report ({error!r})") from None


@dataclass(frozen=True, slots=True)
class DelayReport:
    """A finished report: one parquet data set for each part in ``directory``, readable without Spark.

    ``airlines``, ``airports`` and ``hours`` have a row for each window (``begin``, ``end``, UTC; ``final``) and
    ``carrier``, ``origin`` or ``hour``, with ``flights``, ``departed``, ``arrived``, ``departure_delay`` and
    ``arrival_delay`` (total minutes). ``routes`` has the busiest routes, by ``rank``.
    """

    directory: Path
    summary: Summary

    def read(self, part: str) -> pyarrow.Table:
        import pyarrow.parquet as pq

        if part not in {*KEYS, ROUTES}:
            raise SettingsError(f"{part!r} is not a part of a report; use one of {', '.join([*KEYS, ROUTES])}")
        return pq.read_table(self.directory / part)

    def totals(self, part: str) -> dict[Any, Totals]:
        """Maps each key of the part to its totals over all windows, sorted by key."""
        found: dict[Any, Totals] = {}
        for row in self.read(part).to_pylist():
            key = row[KEYS[part]]
            found[key] = found.get(key, Totals()) + Totals(*(row[name] for name in _TOTALLED))
        return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Totals:
    """The numbers of flights, departures and arrivals, and the total delays in minutes."""

    flights: int = 0
    departed: int = 0
    arrived: int = 0
    departure_delay: int = 0
    arrival_delay: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(getattr(self, name) + getattr(other, name) for name in _TOTALLED))

    @property
    def mean_arrival_delay(self) -> float | None:
        """The mean in minutes; None if no flight arrived."""
        return self.arrival_delay / self.arrived if self.arrived else None


_TOTALLED = ("flights", "departed", "arrived", "departure_delay", "arrival_delay")


def write_report(spark: SparkSession, output: str, windows: Windows | None = None) -> DelayReport:
    """Reports on the current table in a job's ``output``, publishes the report atomically, and keeps the last few.

    Raises :class:`NotFound` if there is no table yet.
    """
    windows = windows or Windows()
    root = local_directory(output)
    rows = read_table(spark, root / RECORDS).persist()
    try:
        summary = _summary(rows, windows)
        # Tables only grow, so the report with more records is the later one.
        with publishing(root / REPORTS, f"{summary.records:015d}") as results:
            for part, frame in _parts(rows.where("problem IS NULL"), windows, summary.watermark).items():
                results.write(part, frame)
            results.summary = summary.to_json()
    finally:
        rows.unpersist()
    return DelayReport(results.directory, summary)


def last_report(output: str) -> DelayReport:
    """Reads the latest report, without Spark. Raises :class:`NotFound`, :class:`MalformedValue`."""
    reports = local_directory(output) / REPORTS
    directory, value = last_published(reports, "'kafka-coord pipeline report' writes one")
    return DelayReport(directory, Summary.from_json(value, str(directory)))


def _summary(rows: DataFrame, windows: Windows) -> Summary:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    before = Window.partitionBy("topic", "partition").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    delay = f.expr(f"INTERVAL '{windows.watermark_delay}'")
    late = f.col("departure") < f.max("departure").over(before) - delay
    partitions = (
        rows.withColumn("late", late)
        .groupBy("topic", "partition")
        .agg(
            f.count("*").alias("records"),
            f.count("departure").alias("flights"),
            f.count_if("late").alias("late"),
            (f.max("departure") - delay).alias("advanced"),
        )
        .agg(
            f.coalesce(f.sum("records"), f.lit(0)).alias("records"),
            f.coalesce(f.sum("flights"), f.lit(0)).alias("flights"),
            f.coalesce(f.sum("late"), f.lit(0)).alias("late"),
            f.count("*").alias("partitions"),
            f.date_format(f.min("advanced"), "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("watermark"),
        )
        .collect()
    )
    found = partitions[0].asDict()  # an aggregation without groups has one row, whatever the table holds
    return Summary(**found, undecodable=found["records"] - found["flights"], windows=windows)


def _parts(flights: DataFrame, windows: Windows, watermark: str | None) -> dict[str, DataFrame]:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    sums = [
        f.count("*").alias("flights"),
        f.count("dep_delay").alias("departed"),
        f.count("arr_delay").alias("arrived"),
        f.coalesce(f.sum("dep_delay"), f.lit(0)).alias("departure_delay"),
        f.coalesce(f.sum("arr_delay"), f.lit(0)).alias("arrival_delay"),
    ]
    final = f.lit(False) if watermark is None else f.col("window.end") <= f.to_timestamp(f.lit(watermark))
    span = [f.col("window.start").alias("begin"), f.col("window.end").alias("end"), final.alias("final")]
    parts = {
        part: flights.groupBy(f.window("departure", windows.window).alias("window"), key)
        .agg(*sums)
        .select(*span, key, *_TOTALLED)
        .orderBy("begin", key)
        for part, key in KEYS.items()
    }
    most = flights.groupBy("origin", "dest").agg(*sums).orderBy(f.desc("flights"), "origin", "dest").limit(windows.top)
    ranked = Window.orderBy(f.desc("flights"), "origin", "dest")
    return parts | {ROUTES: most.select(f.row_number().over(ranked).alias("rank"), "origin", "dest", *_TOTALLED)}
