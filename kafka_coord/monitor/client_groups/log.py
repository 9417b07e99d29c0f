"""Reads the records of the groups log with a plain consumer."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from kafka_coord.errors import BrokerError, NotFound
from kafka_coord.grouplog.records import (
    CLAIM_KEY,
    GROUP_KEY,
    KEEP_ALIVE_KEY,
    OFFSET_KEY,
    Claim,
    GroupEntry,
    OffsetEntry,
    read_record,
)
from kafka_coord.grouplog.term import TOPIC
from kafka_coord.wire.batches import LogRecord
from kafka_coord.wire.errors import BadMessage

SILENCE_S = 15.0
"""Reading fails after this many seconds without a record."""
_REPORT_S = 2.0
_AT_ONCE = 1_000
_VERSION = struct.Struct(">h")


class EntryKind(StrEnum):
    OFFSET = "offset"
    GROUP = "group"
    CLAIM = "claim"
    KEEP_ALIVE = "keep-alive"
    UNREADABLE = "unreadable"
    UNKNOWN = "unknown"


_KINDS = {
    0: EntryKind.OFFSET,
    OFFSET_KEY: EntryKind.OFFSET,
    GROUP_KEY: EntryKind.GROUP,
    CLAIM_KEY: EntryKind.CLAIM,
    KEEP_ALIVE_KEY: EntryKind.KEEP_ALIVE,
}


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One record. ``entry`` is ``None`` for an empty or undecodable record; for the latter, ``problem`` says why."""

    offset: int
    timestamp_ms: int
    kind: EntryKind
    entry: OffsetEntry | GroupEntry | Claim | None
    problem: str = ""

    @property
    def group(self) -> str | None:
        return self.entry.group if isinstance(self.entry, OffsetEntry | GroupEntry) else None


def entry_of(record: LogRecord) -> LogEntry:
    """Decodes a record."""
    key = record.key or b""
    kind = _KINDS.get(_VERSION.unpack_from(key)[0], EntryKind.UNKNOWN) if len(key) >= _VERSION.size else None
    try:
        entry = read_record(record)
    except BadMessage as error:
        return LogEntry(record.offset, record.timestamp_ms, EntryKind.UNREADABLE, None, str(error))
    return LogEntry(record.offset, record.timestamp_ms, kind or EntryKind.UNREADABLE, entry)


def about_group(group: str, *, offsets: bool = True) -> Callable[[LogRecord], bool]:
    """Selects claims and the group's records (without ``offsets``: only its generations) by their keys alone."""
    name = group.encode("utf-8", "surrogatepass")
    versions = (0, OFFSET_KEY, GROUP_KEY) if offsets else (GROUP_KEY,)
    starts = tuple(struct.pack(">hh", version, len(name)) + name for version in versions)
    claim = _VERSION.pack(CLAIM_KEY)
    return lambda record: record.key is not None and (record.key.startswith(starts) or record.key == claim)


@dataclass(frozen=True, slots=True)
class Extent:
    """The bounds of a partition's log: the first offset, and the offset of the next record."""

    first: int
    end: int


class LogReader:
    """Reads one partition of the groups log. Close it after use.

    ``properties`` are librdkafka's (security and the like). Raises :class:`NotFound` if there is no such log, and
    :class:`BrokerError`.
    """

    def __init__(self, bootstrap: str, properties: Mapping[str, str], partition: int) -> None:
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        self._partition = partition
        config = {
            "client.id": "kafka-coord",
            "log_level": 0,
            **properties,
            "bootstrap.servers": bootstrap,
            "group.id": "kafka-coord-reads-the-log",  # librdkafka requires one; it is never joined
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
        }
        try:
            self._consumer = Consumer(config)
            if TOPIC not in self._consumer.list_topics(timeout=SILENCE_S).topics:
                raise NotFound(f"there is no topic {TOPIC}: no Kafka client has been served yet")
            where = TopicPartition(TOPIC, partition)
            self.extent = Extent(*self._consumer.get_watermark_offsets(where, timeout=SILENCE_S))
        except KafkaException as error:
            raise BrokerError(f"partition {partition} of {TOPIC} cannot be read: {_words(error)}") from error

    def records(self, first: int, progress: Callable[[int], None]) -> Iterator[LogRecord]:
        """Yields the records from ``first`` to the end as of the opening. Calls ``progress`` with the offset."""
        from confluent_kafka import TopicPartition

        end = self.extent.end
        at = max(first, self.extent.first)
        if at >= end:
            return
        self._consumer.assign([TopicPartition(TOPIC, self._partition, at)])
        heard = told = time.monotonic()
        while at < end:
            messages = self._consumer.consume(_AT_ONCE, timeout=0.5)
            now = time.monotonic()
            if messages:
                heard = now
            elif self._position() >= end:
                return  # the remaining offsets have no records: compacted, or a transaction's markers
            elif now - heard > SILENCE_S:
                raise BrokerError(f"no record of partition {self._partition} of {TOPIC} came within {SILENCE_S:g} s")
            for one in messages:
                if one.error():
                    raise BrokerError(f"partition {self._partition} of {TOPIC}: {one.error().str()}")
                at = (one.offset() or 0) + 1
                if at <= end:
                    yield LogRecord(_bytes(one.key()), _bytes(one.value()), at - 1, one.timestamp()[1])
            if now - told > _REPORT_S:
                told = now
                progress(at)

    def _position(self) -> int:
        from confluent_kafka import TopicPartition

        (found,) = self._consumer.position([TopicPartition(TOPIC, self._partition)])
        return int(found.offset)

    def close(self) -> None:
        self._consumer.close()


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _words(error: Exception) -> str:
    found = error.args[0] if error.args else error
    return str(found.str()) if hasattr(found, "str") else str(found)
