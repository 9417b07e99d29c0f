"""Runs a Spark query as a consumer of a run. The process has its own Spark, and writes to a parquet table.

Spark plans in a separate process, so two processes write into one journal, line by line. The planning process writes
the query's partitions, and this process writes the records of each micro-batch. A record counts as handed out when its
micro-batch arrives, or at the earliest at the end of the previous micro-batch.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from kafka_coord.model import TopicPartition
from kafka_coord.spark.holdings import BatchHoldings
from kafka_coord.spark.member import QueryMember
from kafka_coord.spark.options import KAFKA_PREFIX, SourceOptions
from kafka_coord.spark.session import spark_session
from kafka_coord.spark.sinks import ParquetTable
from kafka_coord.spark.sinks.batches import BetweenBatches
from kafka_coord.spark.source import GroupStreamReader, KafkaCoordSource
from tests.chaos.journal import ConsumerWriter
from tests.chaos.judge.tables import TABLES
from tests.chaos.member import AGAIN_S, run
from tests.chaos.parts import Part

log = logging.getLogger("kafka_coord.chaos.spark")

JOURNAL = "journal"
"""An additional option of the source, which is the file of the journal."""


class TellingHoldings(BatchHoldings):
    """Records started, stopped and lost partitions."""

    journal: ConsumerWriter

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        begun = list(partitions)
        wanted = {tp: holding.position for tp in begun if (holding := self._held.get(tp)) is not None}
        if wanted:
            self.journal.started({tp: at if at >= 0 else None for tp, at in wanted.items()})
        super().begin(begun)

    def release(self, partitions: Iterable[TopicPartition]) -> Any:
        given_up = list(partitions)
        # If the query leaves during a micro-batch, other members read its records again.
        lost_after_stop = self._in_batch & set(given_up)
        if lost_after_stop:
            self.journal.lost(lost_after_stop)
        self.journal.stopped(set(given_up) - lost_after_stop)
        return super().release(given_up)

    def abandon(self) -> Iterable[TopicPartition]:
        gone = list(super().abandon())
        if gone:
            self.journal.lost(gone)
        return gone


class TellingReader(GroupStreamReader):
    """The source's reader, with holdings that record their changes."""

    def __init__(self, options: SourceOptions, journal: str) -> None:
        super().__init__(options)
        self._journal = journal

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_journal": self._journal}

    def _join(self) -> QueryMember:
        TellingHoldings.journal = ConsumerWriter.appending(Path(self._journal))
        return QueryMember(self._options, TellingHoldings)


class TellingSource(KafkaCoordSource):
    """``format("kafka_coord_chaos")``."""

    @classmethod
    def name(cls) -> str:
        return "kafka_coord_chaos"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        del schema
        options = {name.lower(): value for name, value in dict(self.options).items()}
        journal = options.pop(JOURNAL)
        return TellingReader(SourceOptions.of(options), journal)


def work(part: Part, zookeeper: str, _bootstrap: str, journal: ConsumerWriter, stopping: threading.Event) -> None:
    """Runs until the stop signal. Starts the query again if ZooKeeper is unreachable or the name is still taken."""
    directory = journal.path.parent.parent
    master = "local[1,4]"  # a task that lost its worker is repeated
    small = {"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "1"}
    with spark_session(part.name, master=master, conf=small, scratch_in=directory) as spark:
        _query(spark, part, zookeeper, journal, directory, stopping)
    journal.closed()


def _query(
    spark: SparkSession,
    part: Part,
    zookeeper: str,
    journal: ConsumerWriter,
    directory: Path,
    stopping: threading.Event,
) -> None:
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(TellingSource)
    rows = (
        spark.readStream.format(TellingSource.name())
        .options(
            zookeeper=zookeeper,
            group=part.group,
            topics=",".join(part.topics),
            consumerId=part.name,
            startingOffsets="earliest",
            sessionTimeoutMs=part.session_timeout_ms,
            rejoinGraceMs=part.rejoin_grace_ms,
            journal=str(journal.path),
            **{f"{KAFKA_PREFIX}{key}": value for key, value in part.security.items()},
        )
        .load()
    )
    table = ParquetTable(spark, directory / TABLES / part.group, group=part.group)
    since = time.monotonic()

    def each(batch: DataFrame, _batch_id: int) -> None:
        nonlocal since
        batch = batch.select("topic", "partition", "offset", "value").persist()
        try:
            seen = [(row[0], row[1], row[2], int(bytes(row[3] or b"-1"))) for row in batch.collect()]
            journal.handed(since, time.monotonic(), sorted(seen))
            table.append(batch)
        finally:
            batch.unpersist()
        since = time.monotonic()

    while not stopping.is_set():
        sink = BetweenBatches(each)
        query = (
            rows.writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(directory / "checkpoints" / part.name))
            .trigger(processingTime="500 milliseconds")
            .start()
        )
        while query.isActive and not stopping.is_set():
            stopping.wait(0.2)
        if stopping.is_set():
            sink.stop(query, timeout_s=10.0)
        else:
            log.warning("again soon consumer=%s: %s", part.name, str(query.exception())[:300])
            stopping.wait(AGAIN_S)


if __name__ == "__main__":
    sys.exit(run("tests.chaos.spark", __doc__, work, None))
