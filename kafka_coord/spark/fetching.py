"""Fetches exact ranges of offsets on Spark's executors, as Arrow batches. Records that cannot be decoded are set aside,
so that the query can process all others.
"""

from __future__ import annotations

import atexit
import logging
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Assigned

from kafka_coord.consumer.record import headers_of
from kafka_coord.errors import BrokerError, MalformedValue, NoOffset, SettingsError
from kafka_coord.kafka.librdkafka import GROUP_PREFIX, is_about_no_group, log_bounds
from kafka_coord.model import TopicPartition

if TYPE_CHECKING:
    import pyarrow

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

Range = tuple[str, int, int, int]
"""A topic, a partition, the first offset, and the offset after the last."""

BATCH_RECORDS = 10_000
_WAIT_S = 0.1
"""How long to wait, in seconds, for a full batch of records before continuing with a partial batch."""
_SILENCE_S = 60.0
"""The task fails after this many seconds without data from any broker. Spark then retries it."""
_OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_TIMESTAMP_TYPES = {0: -1, 1: 0, 2: 1}
"""Maps librdkafka's timestamp types to Kafka's numbers, which Spark's source uses."""

_MOST_MS = (2**63 - 1) // 1000
"""Spark holds timestamps as 64-bit numbers of µs, so beyond this many ms, its own source fails too."""
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The first and last ms of the years 1 to 9999, beyond which neither Python nor SQL can show a time."""

_clients: dict[tuple[tuple[str, str], ...], Consumer] = {}


@dataclass(slots=True)
class _Reading:
    """The progress of reading one range. ``at`` is the next offset, and ``end`` is the offset after the last."""

    topic: str
    partition: int
    at: int
    end: int

    @property
    def assigned(self) -> Assigned:
        return Assigned(self.topic, self.partition, self.at)


_Readings = dict[tuple[str | None, int | None], _Reading]
"""The unfinished readings, by topic and partition."""


def fetch(
    ranges: Sequence[Range], settings: Mapping[str, str], *, headers: bool, fail: bool, clamp: bool = False
) -> Iterator[pyarrow.RecordBatch]:
    """Yields the records of the given ranges as record batches with the source's columns. The records of one partition
    are in order, but partitions are interleaved. If records are no longer in the log, skips them or, with ``fail``,
    raises :class:`NoOffset`. A timestamp that Spark cannot represent raises :class:`MalformedValue` or, with ``clamp``,
    is replaced by the nearest one that it can. The worker process keeps one client open for each set of settings.
    """
    client = _client(settings)
    try:
        for together in _apart(ranges):
            yield from _fetch_together(client, together, headers=headers, fail=fail, clamp=clamp)
    except KafkaException as error:
        _forget(settings)
        raise BrokerError(f"fetching failed: {error.args[0].str()}") from error
    except BaseException:
        _forget(settings)  # also for GeneratorExit: the client may still have work in progress
        raise
    client.unassign()


def _apart(ranges: Sequence[Range]) -> list[list[Range]]:
    """Splits the ranges into groups with at most one range per partition, since a client keeps only one position per
    partition."""
    rounds: list[list[Range]] = []
    used: Counter[tuple[str, int]] = Counter()
    for topic, partition, first, end in ranges:
        if used[topic, partition] == len(rounds):
            rounds.append([])
        rounds[used[topic, partition]].append((topic, partition, first, end))
        used[topic, partition] += 1
    return rounds


def _fetch_together(
    client: Consumer, ranges: Sequence[Range], *, headers: bool, fail: bool, clamp: bool = False
) -> Iterator[pyarrow.RecordBatch]:
    """Reads all ranges at the same time. A client sends one request at a time to each broker, so if the ranges were
    read in turn, a request that waits at the end of a log would delay the next range by up to ``fetch.wait.max.ms``.
    """
    left: _Readings = {(topic, partition): _Reading(topic, partition, at, end) for topic, partition, at, end in ranges}
    client.assign([one.assigned for one in left.values()])
    heard = time.monotonic()
    while left:
        remaining = sum(one.end - one.at for one in left.values())
        messages = client.consume(min(BATCH_RECORDS, remaining), timeout=_WAIT_S)
        faults = [one for one in messages if one.error() is not None]
        if faults:
            messages = [one for one in messages if one.error() is None]
        if good := _within(messages, left):
            heard = time.monotonic()
            yield to_arrow(good, headers=headers, clamp=clamp)
        for fault in faults:
            _handle_error(fault, client, left, fail=fail)
        finished = [one for one in left.values() if one.at >= one.end]
        for one in finished:
            del left[one.topic, one.partition]
        if finished and left:
            client.incremental_unassign([one.assigned for one in finished])
        if left and time.monotonic() - heard > _SILENCE_S:
            silent = ", ".join(f"{one.topic}-{one.partition} at {one.at}" for one in left.values())
            raise BrokerError(f"no broker has sent records from {silent} for {_SILENCE_S:g} s")


def _within(messages: Sequence[Any], left: _Readings) -> Sequence[Any]:
    """Returns the messages within the ranges, and advances the readings. A message beyond the end of a range finishes
    its reading: no records exist at the remaining offsets of that range, because of compaction or transactions.
    """
    offsets = [message.offset() for message in messages]
    kept: list[tuple[int, int]] = []
    begin = 0
    for place, run in groupby((message.topic(), message.partition()) for message in messages):
        stop = begin + sum(1 for _ in run)
        if (reading := left.get(place)) is not None:
            first = bisect_left(offsets, reading.at, begin, stop)
            after = bisect_left(offsets, reading.end, first, stop)
            kept.append((first, after))
            reading.at = reading.end if after < stop else max(reading.at, offsets[stop - 1] + 1)
        begin = stop
    if sum(after - first for first, after in kept) == len(messages):
        return messages
    return [message for first, after in kept for message in messages[first:after]]


def _handle_error(fault: Any, client: Consumer, left: _Readings, *, fail: bool) -> None:
    """Advances the reading that an error belongs to, if it can continue. Ignores retriable errors, and raises all
    others."""
    error, reading = fault.error(), left.get((fault.topic(), fault.partition()))
    if error.code() == KafkaError._PARTITION_EOF:
        if reading is None or reading.at >= reading.end:
            return
        if fault.offset() is not None and fault.offset() >= reading.end:
            reading.at = reading.end
        else:
            _after_gap(client, reading, fail=fail)
    elif error.code() in _OUT_OF_RANGE:
        if reading is not None:
            _after_gap(client, reading, fail=fail)
    elif not (error.retriable() or is_about_no_group(error)):
        raise KafkaException(error)


def _after_gap(client: Consumer, reading: _Reading, *, fail: bool) -> None:
    """Finishes a reading if the log contains no more records before the end of the range. If records were lost, skips
    them or, with ``fail``, raises :class:`NoOffset`. Skips nothing while a newly elected partition leader does not know
    the log's end yet and returns a retriable error (KIP-207).
    """
    at, end = reading.at, reading.end
    try:
        low, high = log_bounds(client, reading.assigned, 10.0)
    except KafkaException as failure:
        if not failure.args[0].retriable():
            raise
        low, high = at, end
    if fail and (at < low or high < end):
        raise NoOffset(
            f"the log of {reading.topic}-{reading.partition} does not contain all records from {at} to {end - 1}: it "
            f"starts at {low}, and its next offset is {high}. Records were deleted, or the topic was recreated; set "
            "onDataLoss=earliest (or latest) to skip them"
        )
    there = max(at, low)
    reading.at = end if there >= min(end, high) else there
    if reading.at < end:
        client.incremental_unassign([reading.assigned])
        client.incremental_assign([reading.assigned])


def out_of_range(
    positions: Mapping[TopicPartition, int], settings: Mapping[str, str], timeout_s: float
) -> frozenset[TopicPartition]:
    """Returns the partitions whose brokers refuse to fetch from the given offset, because it is out of range. Only a
    fetch tells. A broker that does not answer within ``timeout_s`` says nothing, so its partitions are left out."""
    client, asked, found = _client(settings), set(positions), set()
    deadline = time.monotonic() + timeout_s
    try:
        client.assign([Assigned(*partition, offset) for partition, offset in positions.items()])
        while asked and time.monotonic() < deadline:
            for message in client.consume(len(asked), timeout=_WAIT_S):
                partition, error = TopicPartition(message.topic(), message.partition()), message.error()
                if error is None or error.code() == KafkaError._PARTITION_EOF:
                    asked.discard(partition)
                elif error.code() in _OUT_OF_RANGE and partition in asked:
                    asked.discard(partition)
                    found.add(partition)
    finally:
        _forget(settings)
    return frozenset(found)


_REMEDY = ". Set includeHeaders=false to read such records without their headers"


def to_arrow(messages: Sequence[Any], *, headers: bool, clamp: bool = False) -> pyarrow.RecordBatch:
    """Converts messages to one record batch, with the columns of Spark's own Kafka source. :func:`fetch` describes
    ``clamp``."""
    import pyarrow as pa

    stamps = [message.timestamp() for message in messages]
    columns: list[Any] = [
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
        pa.array([message.topic() for message in messages], pa.string()),
        pa.array([message.partition() for message in messages], pa.int32()),
        pa.array([message.offset() for message in messages], pa.int64()),
        pa.array(_micros(messages, stamps, clamp=clamp), pa.timestamp("us", tz="UTC")),
        pa.array([_TIMESTAMP_TYPES[kind] for kind, _ in stamps], pa.int32()),
    ]
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    if headers:
        entry = pa.struct([("key", pa.string()), ("value", pa.binary())])
        header_lists = [
            [{"key": name, "value": value} for name, value in pairs]
            if (pairs := headers_of(message, _REMEDY))
            else None
            for message in messages
        ]
        columns.append(pa.array(header_lists, pa.list_(entry)))
        names.append("headers")
    return pa.RecordBatch.from_arrays(columns, names=names)


def _micros(messages: Sequence[Any], stamps: Sequence[tuple[int, int]], *, clamp: bool) -> list[int]:
    """Returns the timestamps in µs since 1970, which Spark holds in 64 bits."""
    lowest, highest = min(ms for _, ms in stamps), max(ms for _, ms in stamps)
    if lowest >= -_MOST_MS and highest <= _MOST_MS:
        return [ms * 1000 for _, ms in stamps]
    if clamp:
        return [min(max(ms, _FIRST_MS), _LAST_MS) * 1000 for _, ms in stamps]
    at, ms = next((at, ms) for at, (_, ms) in enumerate(stamps) if abs(ms) > _MOST_MS)
    odd = messages[at]
    raise MalformedValue(
        f"{odd.topic()}-{odd.partition()} at {odd.offset()}",
        f"the record's timestamp, {ms} ms since 1970, is out of Spark's range; its producer probably wrote "
        "nanoseconds. Set timestampOutOfRange=clamp to read such records with the nearest time from year 1 to 9999",
        "timestamp",
    )


def _client(settings: Mapping[str, str]) -> Consumer:
    key = tuple(sorted(settings.items()))
    if key not in _clients:
        _clients[key] = Consumer(
            {
                "group.id": f"{GROUP_PREFIX}spark",
                # Only a fetch beyond the end of a range waits this long, but it holds up the next micro-batch.
                "fetch.wait.max.ms": 20,
                # After librdkafka has prefetched enough, it waits this long before it fetches again (default: 1 s;
                # librdkafka issue 2879).
                "fetch.queue.backoff.ms": 10,
                "fetch.min.bytes": 1,
                "metadata.max.age.ms": 1_000,  # a topic recreated sooner corrupts librdkafka's memory (ADR 11)
                **settings,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )
    return _clients[key]


def _forget(settings: Mapping[str, str]) -> None:
    client = _clients.pop(tuple(sorted(settings.items())), None)
    if client is not None:
        client.close()


@atexit.register
def _close_all() -> None:
    for client in _clients.values():
        client.close()
    _clients.clear()


PLACE = ("topic", "partition", "offset")
_CORRUPT = "_undecodable"
_DECODED = "_decoded"


class Decoded(NamedTuple):
    """The two halves of the source's rows. Both contain topic, partition and offset, and timestamp if the rows do.
    ``good`` also contains the decoded columns, and ``bad`` the raw ``value``, and ``key`` if the rows do."""

    good: DataFrame
    bad: DataFrame


def decoded(rows: DataFrame, schema: StructType | str) -> Decoded:
    """Splits the source's rows into those whose value is JSON of the given schema (a ``StructType`` or a DDL string)
    and all others.

    A value is bad if it is missing, is not a JSON object, or contains a field of the wrong type. A missing field is
    null, as in Spark's ``from_json``. Both halves are lazy, and each row is in exactly one half. If you use both
    halves, ``persist`` the rows first, or Spark reads them twice.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructType

    target = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(target, StructType):
        raise SettingsError(f"{schema!r} is not a record schema; list its columns, as in 'carrier string'")
    taken = {*PLACE, "timestamp", _CORRUPT, _DECODED} & set(target.fieldNames())
    if taken:
        raise SettingsError(f"column {sorted(taken)[0]!r} of the schema is already a column of the source's rows")
    # In the column named here, from_json stores the whole text of a value that it cannot decode.
    extended = StructType([*target.fields]).add(_CORRUPT, StringType())
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = rows.withColumn(_DECODED, f.from_json(f.col("value").cast("string"), extended, options))
    # A missing or blank value needs its own checks, because from_json returns null for it, or a struct of nulls in
    # which the corrupt column is null too.
    is_bad = (
        f.col(_DECODED).isNull()
        | f.col(f"{_DECODED}.{_CORRUPT}").isNotNull()
        | (f.trim(f.col("value").cast("string")) == "")
    )
    at = [*PLACE, *(["timestamp"] if "timestamp" in rows.columns else [])]
    good = parsed.where(~is_bad).select(*at, *(f.col(f"{_DECODED}.`{name}`").alias(name) for name in target.names))
    key = ["key"] if "key" in rows.columns else []
    return Decoded(good, parsed.where(is_bad).select(*at, *key, "value"))


def keep_aside(bad: DataFrame, directory: str | Path) -> int:
    """Appends the bad rows to the parquet table in ``directory`` and returns their number. Logs the number if there are
    any. Use it within ``foreachBatch``. A retried micro-batch appends its rows again, so identify rows by topic,
    partition and offset. Raises Spark's errors.
    """
    bad = bad.persist()
    try:
        count = bad.count()
        if count:
            first = bad.select(*PLACE).first()
            bad.coalesce(1).write.mode("append").parquet(str(directory))
            place = f"{first[0]}-{first[1]} at {first[2]}" if first else "nowhere"
            log.warning("set aside %d undecodable records, such as %s directory=%s", count, place, directory)
        return count
    finally:
        bad.unpersist()
