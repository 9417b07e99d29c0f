"""Delays by airline, airport and hour, and the routes most flown: a report from the table of the job ``flights``.

Why the sums are not a streaming aggregation. Partitions move between the applications of a group, and Spark keeps the
state of an aggregation with one application's checkpoint: of a partition that moves, one half of a window would lie in
one state and the other half in another; its records would be dropped as late wherever others of that application are
further in event time; and an application that is started again from its checkpoint would count what the next owner
counts too. The one thing the applications share is the table, exactly once by offsets (see
:mod:`kafka_coord.spark.sinks`). So the sums are a function of the table: computed as often as one likes, by whom one
likes, and the same for the same table.

The windows are of event time, and the watermark is kept for each partition, as Kafka orders records within one: it is
as far as the furthest record of the partition that has advanced least, less the delay allowed. A window that ends
before it is ``final``. A record that came later than the delay allows is counted all the same, and as ``late``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka_coord.dev.jobs.streaming import RECORDS
from kafka_coord.errors import MalformedValue, SettingsError
from kafka_coord.spark.jobs.publishing import last_published, publishing
from kafka_coord.spark.sinks import read_table
from kafka_coord.spark.sinks.files import local_directory

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

REPORTS = "reports"
"""Where in a job's output directory its reports are."""

KEYS = {"airlines": "carrier", "airports": "origin", "hours": "hour"}
"""The parts of a report with delays, and the column each is by (``hour``: of the scheduled departure, local time)."""
ROUTES = "routes"

_INTERVAL = re.compile(r"\d+ (?:second|minute|hour|day|week)s?")


@dataclass(frozen=True, slots=True)
class Windows:
    """How event time is cut, as Spark says times, such as ``1 day``; and how many routes are told. Raises
    :class:`SettingsError` for what is no time."""

    window: str = "1 day"
    watermark_delay: str = "1 day"
    top: int = 10

    def __post_init__(self) -> None:
        for given in (self.window, self.watermark_delay):
            if not _INTERVAL.fullmatch(given) or (given is self.window and not int(given.split()[0])):
                raise SettingsError(f"{given!r} is not a length of time such as '1 day', '6 hours' or '30 minutes'")


@dataclass(frozen=True, slots=True)
class Summary:
    """What a report is of: ``records`` of the table, ``flights`` of them, ``undecodable`` the rest, and ``late`` the
    flights that came later than the watermark's delay allows. ``watermark`` is the event time up to which windows are
    final (ISO, UTC), None without any flight."""

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
                raise MalformedValue(where, f"is of version {value['version']!r}; this release knows 1")
            return cls(**given | {"windows": Windows(**given["windows"])})
        except (KeyError, TypeError) as error:
            raise MalformedValue(where, f"not the summary of a report ({error!r})") from None


@dataclass(frozen=True, slots=True)
class DelayReport:
    """A finished report: in ``directory`` one parquet data set for each part, read back without Spark.

    ``airlines``, ``airports`` and ``hours`` have a row for each window (``begin``, ``end``, UTC; ``final``) and
    ``carrier``, ``origin`` or ``hour``, with ``flights``, ``departed``, ``arrived``, ``departure_delay`` and
    ``arrival_delay`` (minutes in all). ``routes`` has those most flown, by ``rank``.
    """

    directory: Path
    summary: Summary

    def read(self, part: str) -> pyarrow.Table:
        """One part, as it was written."""
        import pyarrow.parquet as pq

        if part not in {*KEYS, ROUTES}:
            raise SettingsError(f"{part!r} is not a part of a report: use one of {', '.join([*KEYS, ROUTES])}")
        return pq.read_table(self.directory / part)

    def totals(self, part: str) -> dict[Any, Totals]:
        """The part's key → its totals over all windows, in the key's order."""
        found: dict[Any, Totals] = {}
        for row in self.read(part).to_pylist():
            key = row[KEYS[part]]
            found[key] = found.get(key, Totals()) + Totals(*(row[name] for name in _TOTALLED))
        return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Totals:
    """Flights, how many of them departed and arrived, and minutes of delay, added up."""

    flights: int = 0
    departed: int = 0
    arrived: int = 0
    departure_delay: int = 0
    arrival_delay: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(getattr(self, name) + getattr(other, name) for name in _TOTALLED))

    @property
    def mean_arrival_delay(self) -> float | None:
        """Minutes; None where none arrived."""
        return self.arrival_delay / self.arrived if self.arrived else None


_TOTALLED = ("flights", "departed", "arrived", "departure_delay", "arrival_delay")


def write_report(spark: SparkSession, output: str, windows: Windows | None = None) -> DelayReport:
    """A report of the table in a job's ``output`` as it is now. Raises :class:`NotFound` where there is no table yet.

    It appears at once and whole. The last few are kept.
    """
    windows = windows or Windows()
    root = local_directory(output)
    rows = read_table(spark, root / RECORDS).persist()
    try:
        summary = _summary(rows, windows)
        # A table only grows: of two reports the one with more records is of a later state of it.
        with publishing(root / REPORTS, f"{summary.records:015d}") as results:
            for part, frame in _parts(rows.where("problem IS NULL"), windows, summary.watermark).items():
                results.write(part, frame)
            results.summary = summary.to_json()
    finally:
        rows.unpersist()
    return DelayReport(results.directory, summary)


def last_report(output: str) -> DelayReport:
    """The report of the latest state of the table, without Spark. Raises :class:`NotFound`, :class:`MalformedValue`."""
    reports = local_directory(output) / REPORTS
    directory, value = last_published(reports, "'kafka-coord pipeline report' writes one")
    return DelayReport(directory, Summary.from_json(value, str(directory)))


def _summary(rows: DataFrame, windows: Windows) -> Summary:
    """One pass over the table."""
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
