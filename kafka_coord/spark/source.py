"""The data source ``format("kafka_coord")``, with the interface that Spark calls."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from kafka_coord.errors import ConsumerClosed, SettingsError
from kafka_coord.model import TopicPartition
from kafka_coord.model.codec import nested
from kafka_coord.spark.fetching import fetch
from kafka_coord.spark.member import QueryMember
from kafka_coord.spark.options import OnDataLoss, SourceOptions, TimestampOutOfRange
from kafka_coord.spark.ranges import NO_RANGES, OffsetRanges, PlannedBatch, require_group
from kafka_coord.zk import connect_with

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger(__name__)

SHORT_NAME = "kafka_coord"
SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
HEADERS = ", headers array<struct<key: string, value: binary>>"

_EVERYTHING = (1 << 62) - 1
_SLOTS = 2
"""How many tasks a micro-batch of at least :data:`_FEW` offsets has if ``minPartitions`` is not set. With one task per
range, a small micro-batch would take three times as long.
"""
_FEW = 5_000
"""One task reads this many offsets while a second task starts, so a smaller micro-batch is not split."""


class KafkaCoordSource(DataSource):
    """The data source. Its options are those of :class:`~kafka_coord.spark.options.SourceOptions`."""

    @classmethod
    def name(cls) -> str:
        return SHORT_NAME

    def schema(self) -> str:
        headers = str(self.options.get("includeHeaders", "false")).lower() == "true"
        return SCHEMA + (HEADERS if headers else "")

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        del schema
        return GroupStreamReader(SourceOptions.of(dict(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        return RangesReader(dict(self.options))


@dataclass
class Task(InputPartition):
    """The work of one task: the ranges to read, as (topic, partition, first, end), and the settings of the client."""

    ranges: tuple[tuple[str, int, int, int], ...]
    settings: dict[str, str]
    headers: bool
    fail: bool
    clamp: bool = False


class GroupStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches from the partitions that the group's coordinator has assigned to this query.

    Spark pickles the reader and sends it to the executors, which call only :meth:`read`. The member stays on the
    driver.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._member: QueryMember | None = None
        self._last: PlannedBatch | None = None
        """The micro-batch that Spark is processing or finished last."""
        self._ranges = NO_RANGES
        """The ranges that this query reads in the last micro-batch. In a replay, other members may own the rest."""
        self._upto: dict[TopicPartition, int] | None = None
        self._resumed = False
        self._stopped = False
        self._terminated = False

    def __getstate__(self) -> dict[str, Any]:
        stays = {"_member": None, "_last": None, "_ranges": NO_RANGES, "_upto": None}
        return self.__dict__ | stays | {"_options": self._options.for_executors()}

    # --- on the driver -----------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name, as are those below
        self._joined()
        return PlannedBatch(self._options.group).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_offsets_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Sets the end offsets of this run, for the partitions that the query owns now. Partitions that are assigned
        later wait for the next run."""
        self._upto = self._joined().ends_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        member = self._joined()
        before = self._decoded(start)
        if self._last is not None and before.number < self._last.number:
            return self._last.to_json()  # planned, but not run yet
        if not self._resumed:
            self._resumed = True
            if self._last is None:
                member.resume_behind(before)
            if self._upto is None or self._upto:
                member.await_partitions()
        member.done(before)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else _EVERYTHING
        if not isinstance(limit, ReadMaxRows | ReadAllAvailable):
            raise SettingsError(f"format kafka_coord does not support {limit!r}, which Spark requests")
        ranges = member.plan(most) if self._upto is None else member.plan_all(most, self._upto)
        if not ranges:
            return start
        self._last = PlannedBatch(
            self._options.group, before.number + 1, ranges, self._options.consumer_id, time.time_ns() // 1_000_000
        )
        self._ranges = ranges
        return self._last.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        member = self._joined()
        before, batch = self._decoded(start), self._decoded(end)
        if batch == before:
            return []
        if self._last is None or batch.number != self._last.number:
            member.resume_behind(before)  # everything before a logged micro-batch is done
            self._last, self._ranges = batch, member.replay(batch)
        return tasks(self._ranges, member.bootstrap, self._options)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        logs = self._member.last_logs() if self._member is not None else {}
        return nested({tp: log._asdict() for tp, log in logs.items()}) or None

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing. Spark calls this only after it has planned the next micro-batch, and planning has already told
        the member that ``end`` is done."""

    def stop(self) -> None:
        """Leaves the group. This is Spark's last call, when its planning process ends."""
        self._stopped = True
        if self._member is not None:
            self._member.close()
            self._member = None
        if self._terminated:
            # Spark no longer listens, so continuing would write to a closed socket and log a traceback.
            logging.shutdown()
            os._exit(0)
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == self._unwind:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _joined(self) -> QueryMember:
        if self._stopped:
            raise ConsumerClosed(f"the query has left group {self._options.group!r}, because it was stopped")
        if self._member is None:
            self._unwind_when_terminated()
            if not logging.getLogger().handlers:  # Spark does not configure logging in its planning process
                logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
                logging.getLogger("kafka_coord").setLevel(self._options.log_level.upper())
            self._member = self._join()
        return self._member

    def _join(self) -> QueryMember:
        return QueryMember(self._options)

    def _unwind_when_terminated(self) -> None:
        """Makes the query leave the group on SIGTERM, which is how Spark ends its planning process. Without this
        handler, Python would exit immediately, and the partitions would have no owner until the session timed out."""
        here = threading.current_thread() is threading.main_thread()
        if here and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._unwind)

    def _unwind(self, _signal: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
        self._terminated = True
        # This ends Spark's loop, which then calls stop(). Leaving the group here might wait for a lock that this thread
        # holds.
        raise SystemExit(0)

    def _decoded(self, value: Mapping[str, Any]) -> PlannedBatch:
        batch = PlannedBatch.from_json(value)
        require_group(batch, self._options.group)
        return batch

    # --- on an executor ----------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return _read(partition)


class RangesReader(DataSourceReader):
    """Reads exactly the offsets of the option ``ranges``, such as ``{"flights": {"0": [[0, 500]]}}``. The reader does
    not join a group or commit offsets."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        if "ranges" not in given:
            raise SettingsError(
                'a batch read needs the option \'ranges\': {"topic": {"partition": [[first, end], …]}}, '
                "where end is the offset after the last"
            )
        try:
            ranges = json.loads(given["ranges"])
        except ValueError as error:
            raise SettingsError(f"option 'ranges' is not JSON: {error}") from None
        self._ranges = OffsetRanges.from_json(ranges, "option 'ranges'")
        given.setdefault("group", "none")
        if "subscribepattern" not in given:
            given.setdefault("topics", ",".join({tp.topic: None for tp in self._ranges.partitions}) or "none")
        self._options = SourceOptions.of(given)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_options": self._options.for_executors()}

    def partitions(self) -> Sequence[InputPartition]:
        from kafka_coord.kafka.brokers import bootstrap_servers

        store = connect_with(self._options.zookeeper)
        try:
            return tasks(self._ranges, bootstrap_servers(store, self._options.kafka), self._options)
        finally:
            store.close()

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return _read(partition)


def _read(partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
    if not isinstance(partition, Task):
        raise TypeError(f"{partition!r} is not an input partition of this source")
    return fetch(
        partition.ranges, partition.settings, headers=partition.headers, fail=partition.fail, clamp=partition.clamp
    )


def tasks(ranges: OffsetRanges, bootstrap: str, options: SourceOptions) -> list[Task]:
    """Distributes the ranges over a few tasks of about the same size. Splits ranges where necessary."""
    rows = list(ranges.rows())
    if not rows:
        return []
    slots = options.min_partitions or (_SLOTS if ranges.size >= _FEW else 1)
    piece = max(1, -(-ranges.size // slots))
    packed: list[list[tuple[str, int, int, int]]] = [[]]
    room = piece
    for topic, partition, start, end in rows:
        at = start
        while at < end:
            if room == 0:
                packed.append([])
                room = piece
            size = min(room, end - at)
            packed[-1].append((topic, partition, at, at + size))
            at += size
            room -= size
    settings = {**options.kafka, "bootstrap.servers": bootstrap}
    fail = options.on_data_loss is OnDataLoss.FAIL
    clamp = options.timestamp_out_of_range is TimestampOutOfRange.CLAMP
    return [Task(tuple(one), settings, options.include_headers, fail, clamp) for one in packed]
