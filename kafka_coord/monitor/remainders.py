"""Finds out whether the offsets between a group's commit and the end of a log hold a record.

The end of a log may consist of offsets that hold no record: markers of transactions, aborted records, and gaps left by
compaction. An application that commits the offset after each record never gets past them, so they look like lag. No
request for offsets tells them apart from records, so this module reads: from the committed offset on, as a consumer
with ``read_committed``, until the first record or the end. It does so only in partitions whose offset stands still, and
remembers what it has found.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from kafka_coord.errors import KafkaCoordError
from kafka_coord.groups.group import OffsetRow
from kafka_coord.kafka.brokers import bootstrap_servers
from kafka_coord.model import TopicPartition
from kafka_coord.zk.store import Store

log = logging.getLogger(__name__)

STILL_MS = 5_000
"""A partition is read once its committed offset has not moved for this long."""
MOST_AT_ONCE = 200
_MOST_REMEMBERED = 200_000
_READ_S = 3.0
"""The longest time, in seconds, that one call of :meth:`Remainders.judged` reads."""
_REFUSED_MS = 60_000
"""How long a refusal to read a partition is remembered."""
_KEPT_MS = 300_000
"""How long it is remembered what was found, because a topic may be recreated under its name."""


class Next(NamedTuple):
    """The first offset that holds a record or, if ``is_record`` is false, the end of what a consumer may read."""

    offset: int
    is_record: bool


Probe = Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, Next | None]]
"""Reads from the given offsets. Returns what it has found, and ``None`` for partitions that it may not read. Leaves out
partitions of which it learned nothing in time."""


@dataclass(frozen=True, slots=True)
class _FoundRemainder:
    """No record lies in [begin, next.offset), as of ``at_ms`` (ms since 1970)."""

    begin: int
    next: Next
    at_ms: int


class Remainders:
    """Corrects the lag of partitions, with what ``probe`` finds. Thread-safe."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._lock = threading.Lock()
        self._found: dict[TopicPartition, _FoundRemainder] = {}
        self._refused: dict[TopicPartition, int] = {}
        """Until when (ms since 1970) a partition is not read again."""
        self._since: dict[tuple[str, TopicPartition], tuple[int, int]] = {}
        """Maps a group's partition to its committed offset, and since when it has stood there (ms since 1970)."""

    def judged(self, group: str, rows: Sequence[OffsetRow], now_ms: int) -> tuple[OffsetRow, ...]:
        """Returns the rows with the lag counted from the first offset that holds a record. In a partition whose offset
        stands still, and whose remainder could not be read, ``unread`` is set."""
        self._forget(now_ms)
        still = {row.tp for row in rows if row.lag and self._stands_still(group, row, now_ms)}
        unknown = [row for row in rows if row.tp in still and not self._knows(row)]
        wanted = {row.tp: row.first_left for row in unknown if self._refused.get(row.tp, 0) <= now_ms}
        if wanted:
            self._read(dict(list(wanted.items())[:MOST_AT_ONCE]), now_ms)
        return tuple(self._corrected(row, row.tp in still) if row.lag else row for row in rows)

    def _forget(self, now_ms: int) -> None:
        for tp in [tp for tp, found in list(self._found.items()) if found.at_ms < now_ms - _KEPT_MS]:
            self._found.pop(tp, None)
        if len(self._since) > _MOST_REMEMBERED:
            self._since.clear()

    def _stands_still(self, group: str, row: OffsetRow, now_ms: int) -> bool:
        committed = row.committed_offset or 0
        at, since = self._since.get((group, row.tp), (-1, now_ms))
        if at != committed:
            since = now_ms if row.committed_ms is None else min(now_ms, row.committed_ms)
            self._since[group, row.tp] = committed, since
        return now_ms - since >= STILL_MS

    def _applying(self, row: OffsetRow) -> _FoundRemainder | None:
        found, end = self._found.get(row.tp), row.end_offset or 0
        return found if found is not None and found.begin <= row.first_left <= found.next.offset <= end else None

    def _knows(self, row: OffsetRow) -> bool:
        """Returns whether it is known if a record lies between the committed offset and the end."""
        found = self._applying(row)
        return found is not None and (found.next.is_record or found.next.offset >= (row.end_offset or 0))

    def _corrected(self, row: OffsetRow, still: bool) -> OffsetRow:
        found = self._applying(row)
        if found is None:
            return replace(row, unread=still)
        lag = max(0, (row.end_offset or 0) - max(found.next.offset, row.first_left))
        return replace(row, lag=lag, unread=still and not self._knows(row))

    def _read(self, wanted: Mapping[TopicPartition, int], now_ms: int) -> None:
        if not self._lock.acquire(blocking=False):
            return  # another thread is reading
        try:
            for tp, found in self._probe(wanted).items():
                if found is None:
                    self._refused[tp] = now_ms + _REFUSED_MS
                else:
                    self._found[tp] = _FoundRemainder(wanted[tp], found, now_ms)
        except KafkaCoordError as error:
            log.debug("could not read the end of some logs: %s", error)
        finally:
            self._lock.release()


def remainders_of(store: Store, properties: Mapping[str, str]) -> Remainders:
    """Returns remainders that are read from the brokers registered in ``store``."""
    return Remainders(probe_with(partial(bootstrap_servers, store, properties), properties))


def probe_with(bootstrap: Callable[[], str], properties: Mapping[str, str]) -> Probe:
    """Returns a probe that reads with a client of its own, which lives for one call. ``bootstrap`` returns the brokers'
    addresses, and ``properties`` are librdkafka settings."""

    def probe(wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Next | None]:
        from kafka_coord.kafka.librdkafka import first_records

        found = first_records(bootstrap(), properties, wanted, _READ_S)
        return {tp: one and Next(*one) for tp, one in found.items()}

    return probe
