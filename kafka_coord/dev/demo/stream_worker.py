"""Runs one Spark query of the demo as a process: ``python -m kafka_coord.dev.demo.stream_worker …``.

It does the work of :mod:`~kafka_coord.dev.demo.worker` in the same group, with a micro-batch every second.
"""

from __future__ import annotations

import argparse
import sys
import threading
from typing import TYPE_CHECKING, Any

from kafka_coord.dev.cluster.process import stopping_event
from kafka_coord.dev.demo.journal import JournalWriter, now_ms
from kafka_coord.dev.demo.queries import LIGHT
from kafka_coord.dev.demo.worker import Work, run_worker
from kafka_coord.errors import ConsumerError
from kafka_coord.spark.session import find_java, spark_session
from kafka_coord.spark.sinks.batches import BetweenBatches
from kafka_coord.spark.source import SHORT_NAME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_POLL_S, _STOP_WITHIN_S = 0.1, 60.0


def consume(given: argparse.Namespace, journal: JournalWriter, stopping: threading.Event) -> None:
    """Runs the query until a stop signal. The source commits the offsets of a micro-batch only after its records are in
    the journal."""
    work = Work()

    def take(rows: DataFrame, _batch_id: int) -> None:
        taken: list[Any] = rows.orderBy("topic", "partition", "offset").collect()
        if taken:
            journal.records(now_ms(), work.do(taken))

    options = {
        "zookeeper": given.zookeeper,
        "group": given.group,
        "topics": given.topic,
        "consumerId": given.consumer_id,
        "sessionTimeoutMs": str(given.session_timeout_ms),
        "maxOffsetsPerTrigger": str(max(1, round(given.records_per_s))),
        "startingOffsets": "earliest",
    }
    sink = BetweenBatches(take)
    with spark_session("kafka-coord demo", master="local[1]", conf=LIGHT, java=find_java().executable) as spark:
        ending = stopping_event()  # again, because Spark has set its own handler
        query = (
            spark.readStream.format(SHORT_NAME)
            .options(**options)
            .load()
            .writeStream.queryName(given.consumer_id)
            .foreachBatch(sink)
            .option("checkpointLocation", given.journal.with_suffix(".checkpoint").as_uri())
            .trigger(processingTime="1 second")
            .start()
        )
        while query.isActive and not (stopping.is_set() or ending.wait(_POLL_S)):
            pass
        if query.isActive:
            if not sink.stop(query, _STOP_WITHIN_S):
                raise ConsumerError("the query was interrupted in the middle of a micro-batch")
        elif (failure := query.exception()) is not None:
            raise ConsumerError(f"the query failed: {failure}")


if __name__ == "__main__":
    sys.exit(run_worker("kafka_coord.dev.demo.stream_worker", consume))
