"""The next record that a group has not read: how old a lag is, and what of it is no record.

The end of a log may consist of offsets that hold no record: markers of transactions, aborted records, and gaps left by
compaction. An application that commits the offset after each record never gets past them, so they look like lag. No
request for offsets tells them apart from records, so :class:`NextRecords` reads: from the committed offset on, as a
consumer with ``read_committed``, until the first record or the end. That record's timestamp also says how old the lag
is (ADR 48). It remembers what it has found.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from msgspec import UNSET, structs

from kafka_coord.errors import KafkaCoordError
from kafka_coord.groups.group import (
    NOT_SUBSCRIBED,
    AgeBy,
    OffsetRow,
    rounded,
)
from kafka_coord.groups.lag_trend import (
    age_by_timestamp,
)
from kafka_coord.kafka.brokers import bootstrap_servers
from kafka_coord.model import TopicPartition
from kafka_coord.zk.store import Store

log = logging.getLogger(__name__)

STILL_MS = 5_000
"""Offsets without a record are looked for once a partition's committed offset has not moved for this long."""
MOST_AT_ONCE = 200
_MOST_REMEMBERED = 200_000
_READ_S = 3.0
"""The longest time, in seconds, that one call of :meth:`NextRecords.read` reads."""
_REFUSED_MS = 60_000
"""How long a refusal to read a partition is remembered."""
_KEPT_MS = 300_000
"""How long it is remembered what was found, because a topic may be recreated under its name."""


class Next(NamedTuple):
    """The first offset that holds a record or, if ``is_record`` is false, the end of what a consumer may read.
    ``timestamp_ms`` is the record's, as someone has written it, or ``None``."""

    offset: int
    is_record: bool
    timestamp_ms: int | None = None


Probe = Callable[[Mapping[TopicPartition, int], float], Mapping[TopicPartition, Next | None]]
"""Reads from the given offsets, for so many seconds at most. Returns what it has found, and ``None`` for partitions
that it may not read. Leaves out partitions of which it learned nothing in time."""


@dataclass(frozen=True, slots=True)
class _FoundNext:
    """No record lies in [begin, next.offset), as of ``at_ms`` (ms since 1970)."""

    begin: int
    next: Next
    at_ms: int


def _waits(row: OffsetRow) -> bool:
    """Returns whether records of the partition may wait for a group that reads it."""
    return bool(row.lag) and row.holding != NOT_SUBSCRIBED


class NextRecords:
    """The next record that each group has not read, with what ``probe`` finds. Thread-safe. ``corrects`` says whether
    the lag counts only from that record on. One call reads ``most`` partitions for ``within_s`` seconds at most."""

    def __init__(
        self, probe: Probe, *, corrects: bool = True, most: int = MOST_AT_ONCE, within_s: float = _READ_S
    ) -> None:
        self._probe, self._corrects = probe, corrects
        self._most, self._within_s = most, within_s
        self._lock = threading.Lock()
        self._found: dict[TopicPartition, list[_FoundNext]] = {}
        self._refused: dict[TopicPartition, int] = {}
        """Until when (ms since 1970) a partition is not read again."""
        self._since: dict[tuple[str, TopicPartition], tuple[int, int]] = {}
        """Maps a group's partition to its committed offset, and since when it has stood there (ms since 1970)."""

    def read(self, groups: Iterable[tuple[str, Sequence[OffsetRow]]], now_ms: int) -> list[tuple[OffsetRow, ...]]:
        """Reads the next records of the groups' partitions that lag, those with the largest lag first, and returns the
        rows with their age. Counts the lag from the first offset that holds a record. In a partition whose offset
        stands still, and whose remainder could not be read, ``unread`` is set."""
        groups = list(groups)
        self._forget(now_ms)
        still = {(group, row.tp) for group, rows in groups for row in rows if self._stands_still(group, row, now_ms)}
        unknown = [
            row
            for _, rows in groups
            for row in rows
            if _waits(row) and self._refused.get(row.tp, 0) <= now_ms and not self._knows(row)
        ]
        unknown.sort(key=lambda row: -(row.lag or 0))
        wanted = [(row.tp, row.first_left) for row in unknown[: self._most]]
        last = {tp: (tp, at) for tp, at in sorted(wanted)}  # a record found there waits for every group before it
        self._read(dict.fromkeys([*last.values(), *wanted]), now_ms)
        return [
            tuple(self._judged(row, (group, row.tp) in still, now_ms) if _waits(row) else row for row in rows)
            for group, rows in groups
        ]

    def _forget(self, now_ms: int) -> None:
        for tp, found in list(self._found.items()):
            left = [one for one in found if one.at_ms >= now_ms - _KEPT_MS]
            if left:
                self._found[tp] = left
            else:
                self._found.pop(tp, None)
        if len(self._since) > _MOST_REMEMBERED:
            self._since.clear()

    def _stands_still(self, group: str, row: OffsetRow, now_ms: int) -> bool:
        if not row.lag:
            return False
        committed = row.committed_offset or 0
        at, since = self._since.get((group, row.tp), (-1, now_ms))
        if at != committed:
            since = now_ms if row.committed_ms is None else min(now_ms, row.committed_ms)
            self._since[group, row.tp] = committed, since
        return now_ms - since >= STILL_MS

    def _applying(self, row: OffsetRow) -> _FoundNext | None:
        end, found = row.end_offset or 0, self._found.get(row.tp, ())
        return next((one for one in found if one.begin <= row.first_left <= one.next.offset <= end), None)

    def _knows(self, row: OffsetRow) -> bool:
        """Returns whether it is known if a record lies between the committed offset and the end."""
        found = self._applying(row)
        return found is not None and (found.next.is_record or found.next.offset >= (row.end_offset or 0))

    def _has_record(self, row: OffsetRow) -> bool:
        """Returns whether a record is known to lie between the committed offset and the end."""
        at = (one.next.offset for one in self._found.get(row.tp, ()) if one.next.is_record)
        return any(row.first_left <= offset < (row.end_offset or 0) for offset in at)

    def _judged(self, row: OffsetRow, still: bool, now_ms: int) -> OffsetRow:
        found = self._applying(row)
        if found is None:
            return structs.replace(row, unread=(still and not self._has_record(row)) or UNSET)
        lag = max(0, (row.end_offset or 0) - max(found.next.offset, row.first_left))
        if lag:
            age_s = age_by_timestamp(found.next.timestamp_ms, now_ms) if found.next.is_record else None
            aged = structs.replace(row, lag_s=rounded(age_s), lag_s_by=None if age_s is None else AgeBy.TIMESTAMP)
        else:
            aged = structs.replace(row, lag_s=0.0)
        if not self._corrects:
            return aged
        return structs.replace(aged, lag=lag, unread=(still and not self._knows(row)) or UNSET)

    def _read(self, wanted: Iterable[tuple[TopicPartition, int]], now_ms: int) -> None:
        """Reads each partition from the offsets on. Several groups may wait at different offsets of one partition, and
        a client reads it from one offset at a time."""
        left = list(wanted)
        if not left or not self._lock.acquire(blocking=False):
            return  # another thread is reading
        try:
            deadline = time.monotonic() + self._within_s
            while left and (left_s := deadline - time.monotonic()) > 0:
                once = dict(reversed(left))
                for tp, found in self._probe(once, left_s).items():
                    if found is None:
                        self._refused[tp] = now_ms + _REFUSED_MS
                    else:
                        known = [one for one in self._found.get(tp, ()) if one.begin != once[tp]]
                        self._found[tp] = [*known, _FoundNext(once[tp], found, now_ms)]
                left = [(tp, at) for tp, at in left if once[tp] != at and tp not in self._refused]
        except KafkaCoordError as error:
            log.debug("could not read the end of some logs: %s", error)
        finally:
            self._lock.release()


def next_records_of(store: Store, properties: Mapping[str, str], **limits: Any) -> NextRecords:
    """Returns next records that are read from the brokers registered in ``store``."""
    return NextRecords(probe_with(partial(bootstrap_servers, store, properties), properties), **limits)


def probe_with(bootstrap: Callable[[], str], properties: Mapping[str, str]) -> Probe:
    """Returns a probe that reads with a client of its own, which lives for one call. ``bootstrap`` returns the brokers'
    addresses, and ``properties`` are librdkafka settings."""

    def probe(wanted: Mapping[TopicPartition, int], within_s: float) -> Mapping[TopicPartition, Next | None]:
        from kafka_coord.kafka.librdkafka import first_records

        found = first_records(bootstrap(), properties, wanted, within_s)
        return {tp: one and Next(*one) for tp, one in found.items()}

    return probe
