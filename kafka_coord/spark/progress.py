"""Monitors queries that read from groups and reports Spark's progress and the groups' offsets as metrics and log
entries.

::

    with watch(spark, zookeeper="zk1:2181/kafka", listen="127.0.0.1:9405"):
        query = rows.writeStream…start()
        query.awaitTermination()
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from pyspark.sql.streaming.listener import StreamingQueryListener

from kafka_coord import __version__
from kafka_coord.consumer.other_clients import check_properties
from kafka_coord.errors import KafkaCoordError, MalformedValue, StoreError
from kafka_coord.groups.cluster import read_cluster
from kafka_coord.groups.offsets import lags_of, read_committed
from kafka_coord.model import TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.model.offsets import LogRange
from kafka_coord.monitor.exposition import Exposition, gauge, labelled
from kafka_coord.settings import load_settings
from kafka_coord.spark.ranges import PlannedBatch
from kafka_coord.zk import connect_with

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

    from kafka_coord.zk.store import Store

log = logging.getLogger(__name__)

SLOW_S = 30.0
"""A micro-batch that takes at least this many seconds is logged as slow. This is half of the default rebalance
timeout."""

_COMMITTED_FOR_S = 2.0
"""How long to reuse the committed offsets after reading them, in seconds."""


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """Spark's progress report on one micro-batch, for the one of the query's sources that reads from ``group``.
    ``logs`` says where the logs of the partitions that the query holds start and end, as of its last poll. ``read``
    holds the offset after the last one that the micro-batch read from each partition. ``seconds`` is the total
    duration, and ``steps_ms`` is the duration of each step.
    """

    group: str
    consumer: str
    batch: int
    rows: int
    input_rows_per_s: float
    processed_rows_per_s: float
    seconds: float
    steps_ms: Mapping[str, int]
    logs: Mapping[TopicPartition, LogRange]
    read: Mapping[TopicPartition, int]

    @classmethod
    def of(cls, progress: StreamingQueryProgress) -> Iterator[Self]:
        """Yields one report for each of this project's sources. Skips other sources."""
        for source in progress.sources:
            try:
                written = json.loads(source.endOffset or "null")
                if not isinstance(written, dict) or "ranges" not in written:
                    continue
                batch = PlannedBatch.from_json(written)
                yield cls(
                    batch.group,
                    batch.consumer,
                    progress.batchId,
                    source.numInputRows,
                    _number(source.inputRowsPerSecond),
                    _number(source.processedRowsPerSecond),
                    progress.batchDuration / 1000,
                    dict(progress.durationMs),
                    _logs(source.latestOffset),
                    {tp: batch.ranges.of_partition(tp)[-1].end for tp in batch.ranges.partitions},
                )
            except (ValueError, MalformedValue) as error:
                log.debug("ignored the progress of query=%s: %s", progress.name or progress.id, error)


@dataclass(slots=True)
class _Series:
    """The accumulated reports on one query and one group."""

    query: str
    group: str
    last: GroupProgress
    active: bool = True
    failed: bool = False
    batches: int = 0
    slow: int = 0
    rows: int = 0
    read: dict[TopicPartition, int] = field(default_factory=dict)

    def take(self, report: GroupProgress, *, slow: bool) -> None:
        self.last = report
        self.active = True
        self.batches += report.rows > 0
        self.slow += slow
        self.rows += report.rows
        # Drop the positions in partitions that the query no longer holds, because they are out of date.
        self.read = {tp: at for tp, at in (self.read | dict(report.read)).items() if tp in report.logs}


class GroupProgressListener(StreamingQueryListener):
    """Stores Spark's last report on each query that reads from a group, and derives the metrics from these reports.
    Spark and the scrapes call this object on different threads. With a ``store``, a scrape also reads the groups'
    committed offsets, at most every few seconds, and leaves them out while ZooKeeper is unreachable. A micro-batch of
    ``slow_s`` seconds or more is logged. If ``file`` is given, the metrics are written to it after each micro-batch.
    """

    def __init__(self, store: Store | None = None, *, slow_s: float = SLOW_S, file: Path | None = None) -> None:
        self._store = store
        self._slow_s = slow_s
        self._file = file
        self._lock = threading.Lock()
        self._series: dict[tuple[str, str], _Series] = {}
        self._names: dict[str, str] = {}
        self._committed: tuple[float, Mapping[str, Mapping[TopicPartition, int]], bool] = (float("-inf"), {}, False)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    # --- on Spark's thread -------------------------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  Spark's names
        self._names[str(event.id)] = event.name or str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        query = self._names[str(progress.id)] = progress.name or str(progress.id)
        for report in GroupProgress.of(progress):
            slow = report.seconds >= self._slow_s and report.rows > 0
            with self._lock:
                series = self._series.setdefault((query, report.group), _Series(query, report.group, report))
                series.take(report, slow=slow)
            if slow:
                self._tell(query, report)
        self._write()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        query = self._names.pop(str(event.id), str(event.id))
        with self._lock:
            for series in self._series.values():
                if series.query == query:
                    series.active, series.failed = False, event.exception is not None
        if event.exception is not None:
            log.error("query=%s has failed: %s", query, event.exception.strip().splitlines()[-1][:500])
        self._write()

    def _tell(self, query: str, report: GroupProgress) -> None:
        steps = sorted(report.steps_ms.items(), key=lambda step: -step[1])
        log.warning(
            "micro-batch %d of query=%s group=%s took %.1f s, at least slow_s=%g: rows=%d rows_per_s=%.0f "
            "partitions=%d longest: %s",
            report.batch,
            query,
            report.group,
            report.seconds,
            self._slow_s,
            report.rows,
            report.processed_rows_per_s,
            len(report.read),
            ", ".join(f"{name} {ms / 1000:.1f} s" for name, ms in steps[1:3]),  # the longest is the total
        )

    def _write(self) -> None:
        if self._file is not None:
            try:
                write_to_textfile(str(self._file), self._registry)
            except OSError as error:
                log.warning("could not write metrics file=%s: %s", self._file, error)

    # --- on a scrape's thread ----------------------------------------------------------------------------------------

    def healthy(self) -> tuple[bool, dict[str, Any]]:
        """Returns whether no query has failed, and each query's state."""
        with self._lock:
            states = {
                one.query: "failed" if one.failed else "active" if one.active else "ended"
                for one in self._series.values()
            }
        return "failed" not in states.values(), {"queries": states, "version": __version__}

    def collect(self) -> Iterator[Metric]:
        """Yields all metrics, as of the last progress of each query."""
        with self._lock:
            series = [(one, one.last, dict(one.read)) for one in self._series.values()]
        plain: list[tuple[str, str, Callable[[_Series, GroupProgress], float]]] = [
            ("query_active", "Whether the query is running.", lambda s, _: s.active),
            ("query_failed", "Whether the query ended with an error.", lambda s, _: s.failed),
            ("query_last_batch", "Spark's number for the last micro-batch.", lambda _, p: p.batch),
            ("query_input_rows_per_second", "Records read.", lambda _, p: p.input_rows_per_s),
            ("query_processed_rows_per_second", "Records processed.", lambda _, p: p.processed_rows_per_s),
            ("query_batch_seconds", "How long the last micro-batch took.", lambda _, p: p.seconds),
        ]
        for name, text, value in plain:
            found = {(one.query, one.group): value(one, last) for one, last, _ in series}
            yield labelled(GaugeMetricFamily, name, text, "query group", found)
        counts: list[tuple[str, str, Callable[[_Series], int]]] = [
            ("query_batches", "Micro-batches with records.", lambda s: s.batches),
            ("query_slow_batches", "Micro-batches that took slow_s or longer.", lambda s: s.slow),
            ("query_rows", "Records read.", lambda s: s.rows),
        ]
        for name, text, count in counts:
            counted = {(one.query, one.group): count(one) for one, _, _ in series}
            yield labelled(CounterMetricFamily, name, f"{text} Since watch() began.", "query group", counted)
        yield from _by_partition(
            {(one.query, one.group): (last.logs, read) for one, last, read in series},
            "query",
            "read",
            "read by the query",
        )
        yield from self._of_groups(series)

    def _of_groups(self, series: Iterable[tuple[_Series, GroupProgress, Any]]) -> Iterator[Metric]:
        if self._store is None:
            return
        logs: dict[str, dict[TopicPartition, LogRange]] = {}
        for one, last, _ in series:
            logs.setdefault(one.group, {}).update(last.logs)
        committed: Mapping[str, Mapping[TopicPartition, int]] = {}
        readable = False
        try:
            committed, readable = self._read_committed(self._store, logs)
        except (StoreError, KafkaCoordError) as error:
            log.debug("could not read committed offsets: %s", error)
        yield gauge("group_offsets_readable", "Whether ZooKeeper returned all offsets.", readable)
        standing: _Standing = {(group,): (logs.get(group, {}), offsets) for group, offsets in committed.items()}
        yield from _by_partition(standing, "group", "committed", "committed by the group")

    def _read_committed(
        self, store: Store, groups: Iterable[str]
    ) -> tuple[Mapping[str, Mapping[TopicPartition, int]], bool]:
        """Returns the offsets of each group, and whether all of them could be read."""
        with self._lock:
            at, committed, readable = self._committed
        if time.monotonic() < at + _COMMITTED_FOR_S and committed.keys() >= set(groups):
            return committed, readable
        topics = read_cluster(store).topics
        found = {group: read_committed(store, group, topics) for group in groups}
        committed = {group: one.offsets for group, one in found.items()}
        readable = not any(one.unreadable for one in found.values())
        with self._lock:
            self._committed = (time.monotonic(), committed, readable)
        return committed, readable


class Watching:
    """The monitoring that :func:`watch` has started. End it with :meth:`close` or by leaving a ``with`` block."""

    def __init__(self, listener: GroupProgressListener, server: Exposition | None, opened: ExitStack) -> None:
        self.listener = listener
        self._server = server
        self._opened = opened

    @property
    def port(self) -> int | None:
        """The port that serves the metrics, or ``None`` if they are not served."""
        return self._server.port if self._server is not None else None

    def close(self) -> None:
        """Removes the listener from Spark and stops serving metrics."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def watch(
    spark: SparkSession,
    *,
    zookeeper: str | None = None,
    listen: str | None = None,
    file: str | Path | None = None,
    slow_s: float = SLOW_S,
    config: str | None = None,
) -> Watching:
    """Watches all queries of the session that read from groups, on the driver.

    The groups' committed offsets are read from ``zookeeper``. Without ``zookeeper``, only Spark's own figures are
    reported. ``listen`` is the address that serves ``/metrics`` and ``/health`` (``host:port``; port 0 means any free
    port). ``file`` is written after every micro-batch, for Prometheus' node exporter, which requires a name that ends
    with ``.prom``. A micro-batch of ``slow_s`` seconds or more is logged. TLS and credentials for ZooKeeper come from
    the settings file ``config`` and the environment. Raises :class:`SettingsError` if the port cannot be opened, and
    the errors of :func:`~kafka_coord.zk.session.connect`.
    """
    store = server = None
    with ExitStack() as opened:
        if zookeeper:
            settings = load_settings({"zookeeper.hosts": zookeeper}, file=config, called="the query's options")
            check_properties(settings)
            store = opened.enter_context(closing(connect_with(settings.zookeeper)))
        listener = GroupProgressListener(store, slow_s=slow_s, file=Path(file) if file else None)
        if listen:
            server = Exposition(listen, listener, listener.healthy, setting="address to listen on")
            opened.callback(server.close)
        spark.streams.addListener(listener)
        opened.callback(spark.streams.removeListener, listener)
        return Watching(listener, server, opened.pop_all())


_Standing = Mapping[tuple[str, ...], tuple[Mapping[TopicPartition, LogRange], Mapping[TopicPartition, int]]]
"""Maps labels to each partition's log and current offset."""


def _by_partition(standing: _Standing, of: str, what: str, text: str) -> Iterator[Metric]:
    """Yields each partition's current offset, and its lag if the log is known."""
    labels = f"{'query group' if of == 'query' else 'group'} topic partition"
    offsets, lags = {}, {}
    for key, (logs, at) in standing.items():
        for tp, lag in lags_of(sorted(at), at, logs).items():
            where = (*key, tp.topic, str(tp.partition))
            offsets[where] = at[tp]
            if lag is not None:
                lags[where] = lag
    yield labelled(GaugeMetricFamily, f"{of}_{what}_offset", f"Offset after the last record {text}.", labels, offsets)
    yield labelled(
        GaugeMetricFamily,
        f"{of}_partition_lag_records",
        f"Records after the last record {text}.",
        labels,
        {where: one.lag for where, one in lags.items()},
    )
    yield labelled(
        GaugeMetricFamily,
        f"{of}_partition_gone_records",
        f"Records after the last record {text} that were deleted unread.",
        labels,
        {where: one.gone for where, one in lags.items()},
    )


def _logs(written: str | None) -> dict[TopicPartition, LogRange]:
    """Reads the result of :meth:`GroupStreamReader.reportLatestOffset`, as JSON."""
    value = json.loads(written or "null")
    if not isinstance(value, dict):
        return {}
    where = "the latest offset in Spark's progress report"
    logs = {
        TopicPartition(topic, int(partition)): fields.mapping(fields.mapping(value, topic, where), partition, where)
        for topic in value
        for partition in fields.mapping(value, topic, where)
    }
    return {
        tp: LogRange(fields.number(log, "start", where), fields.number(log, "end", where)) for tp, log in logs.items()
    }


def _number(value: float | None) -> float:
    """Returns a figure from Spark, or 0.0 if it is missing (NaN or ``None``)."""
    return value if value is not None and value == value else 0.0  # noqa: PLR0124
