"""Reads the records of the groups log for operator commands."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kafka_coord.errors import BrokerError
from kafka_coord.grouplog.records import (
    CLAIM_KEY,
    GONE_KEY,
    GROUP_KEY,
    HEARD_KEY,
    KEEP_ALIVE_KEY,
    OFFSET_KEY,
    Entry,
    GroupEntry,
    OffsetEntry,
    read_record,
)
from kafka_coord.grouplog.term import TOPIC
from kafka_coord.kafka.cluster import ClusterClient
from kafka_coord.kafka.log_reader import PartitionReader
from kafka_coord.wire.batches import LogRecord
from kafka_coord.wire.errors import BadMessage

SILENCE_S = 15.0
"""Reading fails after this many seconds without a response."""
_REPORT_S = 2.0
_VERSION = struct.Struct(">h")


class EntryKind(StrEnum):
    OFFSET = "offset"
    GROUP = "group"
    CLAIM = "claim"
    KEEP_ALIVE = "keep-alive"
    HEARD = "heard"
    GONE = "gone"
    UNREADABLE = "unreadable"
    UNKNOWN = "unknown"


_KINDS = {
    0: EntryKind.OFFSET,
    OFFSET_KEY: EntryKind.OFFSET,
    GROUP_KEY: EntryKind.GROUP,
    CLAIM_KEY: EntryKind.CLAIM,
    KEEP_ALIVE_KEY: EntryKind.KEEP_ALIVE,
    HEARD_KEY: EntryKind.HEARD,
    GONE_KEY: EntryKind.GONE,
}


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One record. ``entry`` is ``None`` for an empty or undecodable record. ``problem`` says why it is undecodable."""

    offset: int
    timestamp_ms: int
    kind: EntryKind
    entry: Entry
    problem: str = ""

    @property
    def group(self) -> str | None:
        return self.entry.group if isinstance(self.entry, OffsetEntry | GroupEntry) else None


def entry_of(record: LogRecord) -> LogEntry:
    key = record.key or b""
    kind = _KINDS.get(_VERSION.unpack_from(key)[0], EntryKind.UNKNOWN) if len(key) >= _VERSION.size else None
    try:
        entry = read_record(record)
    except BadMessage as error:
        return LogEntry(record.offset, record.timestamp_ms, EntryKind.UNREADABLE, None, str(error))
    return LogEntry(record.offset, record.timestamp_ms, kind or EntryKind.UNREADABLE, entry)


def about_group(group: str, *, offsets: bool = True) -> Callable[[LogRecord], bool]:
    """Returns a filter on record keys that selects the claims and the group's records. Without ``offsets``, it selects
    only the claims and the group's generations."""
    name = group.encode("utf-8", "surrogatepass")
    versions = (0, OFFSET_KEY, GROUP_KEY) if offsets else (GROUP_KEY,)
    starts = tuple(struct.pack(">hh", version, len(name)) + name for version in versions)
    claim = _VERSION.pack(CLAIM_KEY)
    return lambda record: record.key is not None and (record.key.startswith(starts) or record.key == claim)


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The bounds of a partition's log: the first offset, and the offset of the next record."""

    first: int
    end: int


def read_log(
    bootstrap: str,
    properties: Mapping[str, str],
    partition: int,
    wanted: Callable[[LogRecord], bool] | None,
    on_progress: Callable[[int, int], None],
    *,
    first: int | None = None,
    last: int | None = None,
) -> tuple[LogBounds, Sequence[LogRecord]]:
    """Reads one partition of the groups log from its leader, up to its current end. Returns the log's bounds, and its
    records, oldest first. ``wanted`` selects records (``None``: every record), and ``last`` limits the result to the
    newest ``last`` of them.

    Starts at the offset ``first``. Without it, starts at the beginning of the log, or ``last`` records before the end
    if every record is wanted. Calls ``on_progress`` from time to time with the current offset and the end.

    ``properties`` are librdkafka settings; only those for security are used. Raises :class:`NotFound` if there is no
    such log, and :class:`BrokerError`.
    """

    async def read() -> tuple[LogBounds, Sequence[LogRecord]]:
        cluster, clock = ClusterClient.of(bootstrap, properties), asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(SILENCE_S) as silence:
                leaders = await cluster.leaders(TOPIC)
                reader = PartitionReader(cluster.to(leaders[partition]), partition, TOPIC)
                bounds = LogBounds(await reader.first_offset(), await reader.end_offset())
                newest = bounds.end - last if last is not None and wanted is None else bounds.first
                begin = max(bounds.first, newest if first is None else first)
                found: deque[LogRecord] = deque(maxlen=last)
                reported = clock()
                async for batch in reader.batches(begin, bounds.end):
                    silence.reschedule(clock() + SILENCE_S)
                    records = () if batch.is_control else batch.records
                    found.extend(
                        one for one in records if begin <= one.offset < bounds.end and (wanted is None or wanted(one))
                    )
                    if clock() - reported > _REPORT_S:
                        reported = clock()
                        on_progress(batch.end, bounds.end)
                return bounds, found
        finally:
            cluster.close()

    try:
        return asyncio.run(read())
    except TimeoutError:
        reason = f"no response within {SILENCE_S:g} s"
        raise BrokerError(f"partition {partition} of {TOPIC} cannot be read: {reason}") from None
    except BadMessage as error:
        raise BrokerError(f"partition {partition} of {TOPIC} cannot be read: {error}") from error
