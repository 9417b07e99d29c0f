"""Fetching exact ranges of offsets, on Spark's executors, as Arrow batches."""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Assigned

from kafka_coord.errors import BrokerError, NoOffset

if TYPE_CHECKING:
    import pyarrow

Range = tuple[str, int, int, int]
"""(topic, partition, first offset, offset after the last)."""

BATCH_RECORDS = 10_000
_WAIT_S = 0.5
_SILENCE_S = 60.0
"""No broker has sent anything for so long: the task fails, and Spark tries it again."""
_TIMESTAMP_TYPES = {0: -1, 1: 0, 2: 1}
"""librdkafka's to Kafka's own numbers, which Spark's source shows."""

_clients: dict[tuple[tuple[str, str], ...], Consumer] = {}


def fetch(
    ranges: Sequence[Range], settings: Mapping[str, str], *, headers: bool, fail: bool
) -> Iterator[pyarrow.RecordBatch]:
    """The records of these ranges as record batches with the source's columns, a range after the other.

    ``fail`` is whether records that are no longer in the log fail the task (:class:`NoOffset`) or are passed over.
    One client for each set of settings is kept as long as the worker process lives.
    """
    client = _client(settings)
    try:
        for topic, partition, first, end in ranges:
            yield from _fetch_one(client, topic, partition, first, end, headers=headers, fail=fail)
    except KafkaException as error:
        _forget(settings)
        raise BrokerError(f"fetching failed: {error.args[0].str()}") from error
    except BaseException:
        _forget(settings)  # it may be in the middle of something; GeneratorExit as well
        raise
    client.unassign()


def _fetch_one(
    client: Consumer, topic: str, partition: int, first: int, end: int, *, headers: bool, fail: bool
) -> Iterator[pyarrow.RecordBatch]:
    client.assign([Assigned(topic, partition, first)])
    at, heard = first, time.monotonic()
    while at < end:
        messages = client.consume(min(BATCH_RECORDS, end - at), timeout=_WAIT_S)
        good = [one for one in messages if one.error() is None and (one.offset() or 0) < end]
        if good:
            heard = time.monotonic()
            at = (good[-1].offset() or 0) + 1
            yield to_arrow(good, headers=headers)
        for one in messages:
            if one.error() is not None:
                at = _after(one, client, topic, partition, at, end, fail=fail)
        if any(one.error() is None and (one.offset() or 0) >= end for one in messages):
            return  # the last offsets of the range hold no records: compaction, or a transaction's end
        if at < end and time.monotonic() - heard > _SILENCE_S:
            raise BrokerError(f"no broker sent anything of {topic}-{partition} at {at} for {_SILENCE_S:g} s")


def _after(told: Any, client: Consumer, topic: str, partition: int, at: int, end: int, *, fail: bool) -> int:
    """Where to go on after what was ``told`` instead of a record, ``end`` being nowhere; raises what cannot be gone on
    from."""
    error = told.error()
    if error.code() == KafkaError._PARTITION_EOF:
        # Its offset counts what holds no record, such as a transaction's end; the client's position does not.
        return end if (told.offset() or 0) >= end else _after_gap(client, topic, partition, at, end, fail=fail)
    if error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:
        return _after_gap(client, topic, partition, at, end, fail=fail)
    if not error.retriable():
        raise KafkaException(error)
    return at


def _after_gap(client: Consumer, topic: str, partition: int, at: int, end: int, *, fail: bool) -> int:
    """There are no records from ``at`` to ``end``, or so it seems: a broker just elected to lead the partition may not
    know yet how far it goes (KIP-207), but then it does not tell where it ends either."""
    try:
        low, high = client.get_watermark_offsets(Assigned(topic, partition), timeout=10)
    except KafkaException as failure:
        if not failure.args[0].retriable():
            raise
        low, high = at, end
    if fail and (at < low or high < end):
        raise NoOffset(
            f"records {at} to {end - 1} of {topic}-{partition} are not in its log, which holds {low} to {high}: they "
            "were deleted, or the topic was made anew; say onDataLoss=earliest (or latest) to pass over them"
        )
    there = max(at, low)
    if there >= min(end, high):
        return end
    client.assign([Assigned(topic, partition, there)])
    return there


def to_arrow(messages: Sequence[Any], *, headers: bool) -> pyarrow.RecordBatch:
    """Messages as one record batch, columns as Spark's own Kafka source has them."""
    import pyarrow as pa

    stamps = [message.timestamp() for message in messages]
    columns: list[Any] = [
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
        pa.array([message.topic() for message in messages], pa.string()),
        pa.array([message.partition() for message in messages], pa.int32()),
        pa.array([message.offset() for message in messages], pa.int64()),
        pa.array([ms * 1000 for _, ms in stamps], pa.timestamp("us", tz="UTC")),
        pa.array([_TIMESTAMP_TYPES[kind] for kind, _ in stamps], pa.int32()),
    ]
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    if headers:
        entry = pa.struct([("key", pa.string()), ("value", pa.binary())])
        found = [
            [{"key": name, "value": value} for name, value in pairs] if (pairs := message.headers()) else None
            for message in messages
        ]
        columns.append(pa.array(found, pa.list_(entry)))
        names.append("headers")
    return pa.RecordBatch.from_arrays(columns, names=names)


def _client(settings: Mapping[str, str]) -> Consumer:
    key = tuple(sorted(settings.items()))
    if key not in _clients:
        _clients[key] = Consumer(
            {
                "group.id": "kafka-coord.spark",  # never joined, nothing is committed to it
                "fetch.wait.max.ms": 100,
                "fetch.min.bytes": 1,
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
