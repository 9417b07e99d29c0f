"""Stops a query between two micro-batches, so that no later owner rereads a record."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from kafka_coord.spark.sinks.batches import ForeachBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_S = 0.05
_IDLE_LOOKS = 10


class BetweenBatches:
    """Wraps a function for ``foreachBatch`` so that its query can be stopped cleanly.

    ``StreamingQuery.stop()`` alone may interrupt a micro-batch after its rows are written and before Spark has notified
    the source. The next owner of the partitions would then read the records again. This class lets the running batch
    finish. Spark marks a batch as done only when it plans the next one, so this class lets Spark plan the next batch,
    but does not run it.
    """

    def __init__(self, each: ForeachBatch) -> None:
        self._each = each
        self._stopping = threading.Event()
        self._between = threading.Event()
        self._gone = threading.Event()
        self._at_work = threading.Lock()

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        with self._at_work:
            if not self._stopping.is_set():
                return self._each(rows, batch_id)
        self._between.set()
        self._gone.wait(60.0)  # stop() ends the query during this wait
        raise RuntimeError(f"micro-batch {batch_id} was not started, because the query is stopping")

    def stop(self, query: StreamingQuery, timeout_s: float = 60.0) -> bool:
        """Stops the query. Returns true if it stopped between two micro-batches, and false if the running micro-batch
        took longer than ``timeout_s`` seconds. May also be called for a query that has already ended.
        """
        self._stopping.set()
        try:
            return self._await_between(query, time.monotonic() + timeout_s)
        finally:
            self._gone.set()
            query.stop()

    def _await_between(self, query: StreamingQuery, deadline: float) -> bool:
        idle = 0
        while query.isActive and time.monotonic() < deadline:
            if self._between.wait(_POLL_S):
                return True
            status = query.status
            # If no data is available and no batch is running, Spark has asked the source for new records and got none.
            # That request also told the source that all earlier batches are done.
            idle = idle + 1 if not status["isDataAvailable"] and not self._at_work.locked() else 0
            if idle >= _IDLE_LOOKS:
                return True
        return not query.isActive
