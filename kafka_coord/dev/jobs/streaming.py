"""Runs a streaming job: a query that writes a group's records to a parquet table until it is stopped."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_coord.errors import ConsumerError, RequestRefused, SettingsError
from kafka_coord.spark.options import SourceOptions
from kafka_coord.spark.sinks import ParquetTable
from kafka_coord.spark.sinks.batches import BetweenBatches
from kafka_coord.spark.sinks.files import local_directory
from kafka_coord.spark.source import SHORT_NAME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log = logging.getLogger(__name__)

RECORDS = "records"
"""The subdirectory for the table in a job's output directory."""
CHECKPOINTS = "checkpoints"

_POLL_S = 0.2
_SLOW_WORKER = "Python worker failed to connect back"
"""Spark gives a new Python worker 10 s to connect, too little on a busy machine. It has no option for this time
(SPARK-45245)."""
_MOST_STARTS = 5
"""How often a query is started if its Python worker is too slow."""

Transform = Callable[["DataFrame"], "DataFrame"]
OnProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """``source`` contains the options of the source, including ``consumerId``. All applications of the group write to
    ``output``. A micro-batch begins every ``trigger``; if that is None, the query reads the current records and ends.
    ``checkpoint`` belongs to this application alone; by default, it is in ``output``, under the consumer id."""

    source: Mapping[str, str]
    output: str
    trigger: str | None = "1 second"
    checkpoint: str | None = None
    stop_timeout_s: float = 60.0
    checked: SourceOptions = field(init=False)

    def __post_init__(self) -> None:
        checked = SourceOptions.of(self.source)
        object.__setattr__(self, "checked", checked)

    @property
    def root(self) -> Path:
        return local_directory(self.output)

    @property
    def table(self) -> Path:
        return self.root / RECORDS

    @property
    def checkpoint_location(self) -> str:
        """The application's own checkpoint directory. It may be deleted, because the group's offsets and the table
        contain the same information."""
        if self.checkpoint is not None:
            return self.checkpoint
        return (self.root / CHECKPOINTS / self.checked.consumer_id).as_uri()


@dataclass(frozen=True, slots=True)
class Ended:
    """What a finished query did. The end was ``clean`` if it came between two micro-batches."""

    micro_batches: int
    records: int
    clean: bool


def run_stream(
    spark: SparkSession,
    options: StreamOptions,
    transform: Transform,
    stopping: threading.Event,
    on_progress: OnProgress = log.info,
) -> Ended:
    """Writes the group's records to the table until ``stopping`` is set or, without a trigger, until all records that
    existed at the start have been written.

    The query ends between two micro-batches, so that no record is read again by its next owner, unless a micro-batch
    takes longer than ``stop_timeout_s``. Raises :class:`RequestRefused` for another group's table, and
    :class:`ConsumerError` if the query fails. A failed query can be restarted: no record is lost or duplicated.
    """
    group = options.checked.group
    table = ParquetTable(spark, options.table, group=group)
    if (owner := table.state().group) not in {"", group}:
        raise RequestRefused(
            f"the group {owner!r} already writes to the table {options.table}, so {group!r} needs its own directory"
        )
    counted = _Counted(table, transform, on_progress)
    sink = BetweenBatches(counted)
    given = {name.lower(): value for name, value in options.source.items()}
    writer = (
        spark.readStream.format(SHORT_NAME)
        .options(**given | {"consumerid": options.checked.consumer_id})
        .load()
        .writeStream.queryName(options.checked.consumer_id)
        .foreachBatch(sink)
        .option("checkpointLocation", options.checkpoint_location)
    )
    triggered = _triggered(writer, options.trigger)
    starts = 0
    while True:
        query, starts = triggered.start(), starts + 1
        try:
            while query.isActive and not stopping.wait(_POLL_S):
                pass
            if query.isActive:
                clean = sink.stop(query, options.stop_timeout_s)
                return Ended(counted.batches, counted.records, clean)
        except BaseException:
            query.stop()
            raise
        if (failure := query.exception()) is None:
            return Ended(counted.batches, counted.records, clean=True)
        told = f"the query {options.checked.consumer_id!r} failed: {_cause(str(failure))}"
        if starts == _MOST_STARTS or _SLOW_WORKER not in str(failure) or stopping.is_set():
            raise ConsumerError(told)
        on_progress(f"{told} Starting it again.")


class _Counted:
    """Appends micro-batches to the table, counts them and their records, and reports progress."""

    def __init__(self, table: ParquetTable, transform: Transform, on_progress: OnProgress) -> None:
        self._table = table
        self._transform = transform
        self._tell = on_progress
        self.batches = 0
        self.records = 0

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        appended = self._table.append(self._transform(rows))
        self.batches += 1
        self.records += appended.rows
        repeated = f", {appended.repeated.size:,} known before" if appended.repeated else ""
        if appended.rows or appended.repeated:
            self._tell(f"micro-batch {batch_id}: {appended.rows:,} records{repeated}")


def _triggered(writer: DataStreamWriter, trigger: str | None) -> DataStreamWriter:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if trigger is None:
        return writer.trigger(availableNow=True)
    try:
        return writer.trigger(processingTime=trigger)
    except (PySparkException, Py4JError):
        raise SettingsError(f"the trigger {trigger!r} is not a time such as '1 second' or '500 milliseconds'") from None


def _cause(text: str) -> str:
    """Returns the last error of our source or else of other Python code, which Spark buries in two stack traces."""
    told = re.findall(
        r"^(?:kafka_coord\.errors\.(\w+): (.*)|(\w+(?:\.\w+)*(?:Error|Exception)): (.*))$", text, re.MULTILINE
    )
    ours = [f"{name}: {text}" for name, text, _, _ in told if name]
    others = [f"{name}: {text}" for _, _, name, text in told if name]
    return ((ours or others[-1:]) or [text.strip().partition("\n")[0]])[-1][:1000]
