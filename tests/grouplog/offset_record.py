"""One offset as a record of the groups log."""

from __future__ import annotations

from kafka_coord.grouplog.records import OffsetEntry, offset_records
from kafka_coord.wire.batches import LogRecord


def offset_record(entry: OffsetEntry) -> LogRecord:
    (record,) = offset_records(entry.group, {(entry.topic, entry.partition): entry.value})
    return record
