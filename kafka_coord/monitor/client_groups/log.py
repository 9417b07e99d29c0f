"""Reads the records of the groups log for operators' commands."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from kafka_coord.errors import BrokerError
from kafka_coord.grouplog.cluster import Cluster
from kafka_coord.grouplog.reader import PartitionReader
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
from kafka_coord.wire.batches import Batch, LogRecord
from kafka_coord.wire.errors import BadMessage

T = TypeVar("T")

SILENCE_S = 15.0
"""After this many seconds without an answer, reading fails."""
_REPORT_S = 2.0
_AT_ONCE = 200
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
    """One record. ``entry`` is ``None`` for an empty or undecodable record. ``problem`` says why it is undecodable."""

    offset: int
    timestamp_ms: int
    kind: EntryKind
    entry: OffsetEntry | GroupEntry | Claim | None
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
    """Returns a filter for claims and the group's records, which reads only the keys. Without ``offsets``, the filter
    selects the claims and the group's generations."""
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


class LogReader:
    """Reads one partition of the groups log from its leader. Close it after use.

    Of librdkafka's ``properties``, only the security settings are used. Raises :class:`NotFound` if there is no such
    log, and :class:`BrokerError`.
    """

    def __init__(self, bootstrap: str, properties: Mapping[str, str], partition: int) -> None:
        self._partition = partition
        self._cluster = Cluster.of(bootstrap, properties)
        self._runner = asyncio.Runner()
        try:
            self.extent = self._run(self._open())
        except BaseException:
            self.close()
            raise

    async def _open(self) -> LogBounds:
        leaders = await self._cluster.leaders(TOPIC)
        self._reader = PartitionReader(self._cluster.to(leaders[self._partition]), self._partition, TOPIC)
        return LogBounds(await self._reader.first_offset(), await self._reader.end_offset())

    def records(self, first: int, progress: Callable[[int], None]) -> Iterator[LogRecord]:
        """Yields the records from ``first`` to the end of the log at the time of opening. Calls ``progress`` with the
        current offset."""
        first, end = max(first, self.extent.first), self.extent.end
        batches = self._reader.batches(first, end)
        told = time.monotonic()
        while some := self._run(_next(batches)):
            for batch in some:
                if not batch.is_control:
                    yield from (one for one in batch.records if first <= one.offset < end)
            if time.monotonic() - told > _REPORT_S:
                told = time.monotonic()
                progress(some[-1].end)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        async def in_time() -> T:
            async with asyncio.timeout(SILENCE_S):
                return await work

        try:
            return self._runner.run(in_time())
        except TimeoutError:
            reason = f"no answer within {SILENCE_S:g} s"
            raise BrokerError(f"partition {self._partition} of {TOPIC} cannot be read: {reason}") from None
        except BadMessage as error:
            raise BrokerError(f"partition {self._partition} of {TOPIC} cannot be read: {error}") from error

    def close(self) -> None:
        self._cluster.close()
        self._runner.close()


async def _next(batches: AsyncIterator[Batch]) -> list[Batch]:
    """Returns a few batches together, because each wait for the loop is expensive. Returns none at the end."""
    found: list[Batch] = []
    async for batch in batches:
        found.append(batch)
        if len(found) >= _AT_ONCE:
            break
    return found
