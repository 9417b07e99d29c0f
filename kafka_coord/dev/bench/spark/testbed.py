"""The testbed of the Spark benchmark: the cluster, the Spark session, and queries that read a topic of flights."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kafka_coord.dev.bench.feeding import Feeding
from kafka_coord.dev.cluster.flights import KeyedRecord, read_flights
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.errors import KafkaCoordError, Timeout
from kafka_coord.kafka.librdkafka import produce

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

OURS = "kafka_coord"
SPARKS = "kafka"

_POLL_S = 0.05
_FED_FLIGHTS = 5_000
"""The number of distinct flights that the benchmark writes over and over while a query reads."""

_numbers = itertools.count(1)


class Work(StrEnum):
    """What a query does with the records."""

    RAW = "raw"
    """Pass every column to Spark's ``noop`` sink, to measure the source itself."""
    PARSED = "parsed"
    """Decode the JSON of each value and sum the delays by airline, as a small job does."""


class QueryFailed(KafkaCoordError):
    """A query of the benchmark ended with an error."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One trigger. ``rows`` is 0 if there was nothing new. It began at ``began`` (seconds since 1970) and took ``ms``.
    ``phases`` maps each of Spark's phases to its duration.
    """

    rows: int
    began: float
    ms: int
    phases: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SparkTestbed:
    """``jvm`` is the pid of the Spark driver, which in local mode is the parent of all other processes. ``sources`` are
    measured in alternation.
    """

    spark: SparkSession
    jvm: int
    zookeeper: str
    bootstrap: str
    directory: Path
    sources: Sequence[str] = (OURS, SPARKS)

    def new_topic(self, partitions: int) -> str:
        topic = f"bench-{next(_numbers)}"
        TopicAdmin(self.bootstrap).create(topic, partitions)
        return topic

    def filled_topic(self, partitions: int, rows: int) -> str:
        """Creates a topic with ``rows`` flights, spread evenly over the partitions. Repeats the file if necessary."""
        topic = self.new_topic(partitions)
        produce(
            self.bootstrap,
            topic,
            # Without a key: tail numbers would fill the partitions unevenly, and the largest would determine the time.
            ((None, value) for _, value in itertools.islice(_endless_flights(), rows)),
            properties={"sticky.partitioning.linger.ms": 0, "partitioner": "random", "linger.ms": 200},
        )
        return topic

    def feeding(self, topic: str, burst: int, every_s: float) -> Feeding:
        """Writes ``burst`` flights to the topic every ``every_s`` seconds while the ``with`` block runs."""
        values = [one.value for one in read_flights(_FED_FLIGHTS)]
        return Feeding(self.bootstrap, topic, burst, every_s, values)

    def query(
        self, source: str, topic: str, *, trigger: Mapping[str, Any], work: Work = Work.RAW, **options: Any
    ) -> Running:
        """Starts a query with its own group and checkpoint."""
        number = next(_numbers)
        if source == OURS:
            given = {"zookeeper": self.zookeeper, "group": f"bench-{number}", "topics": topic, **options}
        else:
            given = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": topic, **options}
        rows = self.spark.readStream.format(source).options(**given).load()
        worked = _summed(rows) if work is Work.PARSED else rows
        writer = worked.writeStream.format("noop").outputMode("update" if work is Work.PARSED else "append")
        writer = writer.option("checkpointLocation", str(self.directory / f"checkpoint-{number}"))
        return Running(writer.trigger(**trigger).start(), str(given.get("group", "")))


@dataclass(frozen=True, slots=True)
class Running:
    """A running query. Leaving the ``with`` block stops it."""

    query: StreamingQuery
    group: str = ""
    began: float = field(default_factory=time.monotonic)

    def batches(self) -> list[MicroBatch]:
        """Returns the finished micro-batches. Raises :class:`QueryFailed` if the query has ended with an error."""
        failure = self.query.exception()
        if failure is not None:
            raise QueryFailed(f"a query failed: {str(failure).strip().splitlines()[0][:300]}")
        return [_batch(one) for one in self.query.recentProgress]

    def finish(self, within_s: float) -> float:
        """Waits for a query with the trigger ``availableNow`` to end. Returns the seconds since its start."""
        deadline = time.monotonic() + within_s
        while self.query.isActive:
            if time.monotonic() >= deadline:
                raise Timeout(f"a query did not end within {within_s:.0f} s")
            time.sleep(_POLL_S)
        self.batches()
        return time.monotonic() - self.began

    def await_rows(self, rows: int, within_s: float) -> None:
        """Waits until the query has read ``rows`` rows."""
        deadline = time.monotonic() + within_s
        while sum(batch.rows for batch in self.batches()) < rows:
            if time.monotonic() >= deadline:
                raise Timeout(f"a query did not read {rows} rows within {within_s:.0f} s")
            time.sleep(_POLL_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self.query.stop()


def _endless_flights() -> Iterator[KeyedRecord]:
    while True:
        yield from read_flights()


def _summed(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    flight = f.from_json(f.col("value").cast("string"), "carrier string, origin string, dep_delay int, arr_delay int")
    return rows.select(flight.alias("flight")).groupBy("flight.carrier").agg(f.sum("flight.arr_delay"), f.count("*"))


def _batch(progress: Any) -> MicroBatch:
    phases = {name: int(ms) for name, ms in progress["durationMs"].items()}
    return MicroBatch(
        rows=int(progress["numInputRows"]),
        began=_seconds(progress["timestamp"]),
        ms=phases.get("triggerExecution", 0),
        phases=phases,
    )


def _seconds(timestamp: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
