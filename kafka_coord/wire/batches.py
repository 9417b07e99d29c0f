"""Encodes and decodes the record batches (magic 2) of a partition's log.

Layout: ``baseOffset int64, batchLength int32, partitionLeaderEpoch int32, magic int8, crc uint32 (CRC-32C of the rest),
attributes int16, lastOffsetDelta int32, baseTimestamp int64, maxTimestamp int64, producerId int64,
producerEpoch int16, baseSequence int32, records``. A record is ``length, attributes int8, timestampDelta, offsetDelta,
key, value, headers``. Lengths and deltas are zigzag varints.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from crc32c import crc32c

from kafka_coord.wire.messages import BadMessage

_HEAD = struct.Struct(">qiibIhiqqqhii")
_CRC = struct.Struct(">I")
_AFTER_CRC = 21
_BEFORE_LENGTH_ENDS = 12
_CONTROL, _COMPRESSION = 0x20, 0x07
NO_PRODUCER = -1


class LogRecord(NamedTuple):
    """One record of a batch, with its offset in the log. The type is a tuple because tuples are cheap and a log can
    contain millions of records."""

    key: bytes | None
    value: bytes | None
    offset: int = 0
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """A decoded batch. ``end`` is the offset after its last record, even if compaction has removed that record."""

    base_offset: int
    end: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_control: bool
    records: tuple[LogRecord, ...]


def encode_batch(
    records: Sequence[LogRecord],
    *,
    now_ms: int,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """Encodes a batch as a producer would, uncompressed and with base offset 0. Every record gets the timestamp
    ``now_ms``."""
    parts: list[bytes] = []
    for number, record in enumerate(records):
        key, value = record.key, record.value
        key_size, key = (_NOTHING, b"") if key is None else (_varint(len(key)), key)
        value_size, value = (_NOTHING, b"") if value is None else (_varint(len(value)), value)
        encoded = b"".join((b"\0\0", _varint(number), key_size, key, value_size, value, b"\0"))
        parts += _varint(len(encoded)), encoded
    body = b"".join(parts)
    last = len(records) - 1
    head = (0, last, now_ms, now_ms, producer_id, producer_epoch, base_sequence)
    start = _HEAD.pack(0, _HEAD.size - _BEFORE_LENGTH_ENDS + len(body), -1, 2, 0, *head, len(records))
    covered = start[_AFTER_CRC:] + body
    return start[: _AFTER_CRC - _CRC.size] + _CRC.pack(crc32c(covered)) + covered


def decode_batches(data: bytes) -> Iterator[Batch]:
    """Yields the batches in the response to a fetch. Omits the last batch if it is truncated. Raises
    :class:`BadMessage` for a corrupt batch, or for a compressed one, which the groups log never contains."""
    at = 0
    while len(data) - at >= _HEAD.size:
        fields = _HEAD.unpack_from(data, at)
        base, length, _, magic, crc, attributes, last, base_ms, _, producer_id, epoch, sequence, count = fields
        end = at + _BEFORE_LENGTH_ENDS + length
        if length < _HEAD.size - _BEFORE_LENGTH_ENDS or magic != 2:
            raise BadMessage(f"offset {base}: expected a batch of magic 2, got magic {magic} and length {length}")
        if end > len(data):
            return
        if crc32c(data[at + _AFTER_CRC : end]) != crc:
            raise BadMessage(f"offset {base}: the batch's checksum is wrong")
        if attributes & _COMPRESSION:
            raise BadMessage(f"offset {base}: the batch is compressed")
        records = tuple(_records(data, at + _HEAD.size, end, count, base, base_ms))
        yield Batch(
            base, base + last + 1, producer_id, epoch, sequence,
            bool(attributes & _CONTROL), records,
        )  # fmt: skip
        at = end


def _records(data: bytes, at: int, end: int, count: int, base: int, base_ms: int) -> Iterator[LogRecord]:
    try:
        for _ in range(count):
            length, at = _read_varint(data, at)
            stop = at + length
            if length < 0 or stop > end:
                raise BadMessage(f"offset {base}: a record is longer than its batch")
            delta_ms, at = _read_varint(data, at + 1)
            delta, at = _read_varint(data, at)
            key, at = _read_bytes(data, at, stop)
            value, at = _read_bytes(data, at, stop)
            yield LogRecord(key, value, base + delta, base_ms + delta_ms)
            at = stop
    except IndexError:
        raise BadMessage(f"offset {base}: the batch ends in the middle of a record") from None


def _read_bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = _read_varint(data, at)
    if length < 0:
        return None, at
    if at + length > end:
        raise BadMessage("a record's key or value is longer than the record")
    return data[at : at + length], at + length


@lru_cache(maxsize=4096)
def _varint(value: int) -> bytes:
    out, value = bytearray(), (value << 1) ^ (value >> 63)
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


_NOTHING = _varint(-1)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise BadMessage("a varint takes more than ten bytes")
