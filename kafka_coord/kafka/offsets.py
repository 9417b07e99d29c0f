"""Reads offsets from the brokers: the start and end of each partition, and the offset at a given time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kafka_coord.errors import BrokerError
from kafka_coord.kafka.brokers import bootstrap_servers, log_left_out
from kafka_coord.kafka.client import connect
from kafka_coord.model import PartitionSet, TopicPartition, Unreadable
from kafka_coord.model.offsets import EARLIEST, LATEST, LogRange
from kafka_coord.zk.store import Store

NO_SUCH_RECORD = -1
"""Stands for the offset of a record that does not exist."""

DEFAULT_TIMEOUT_S = 5.0
FRESH_S = 4.0


class BrokerOffsets(NamedTuple):
    """The known offsets. ``note`` says why the rest are unknown, or is ``""``."""

    offsets: Mapping[TopicPartition, int]
    note: str = ""


class BrokerRanges(NamedTuple):
    """The known logs. ``note`` says why the rest are unknown, or is ``""``."""

    ranges: Mapping[TopicPartition, LogRange]
    note: str = ""


class OffsetReader:
    """Queries the brokers for offsets. ``properties`` are librdkafka settings, such as those for security. Each query
    takes at most about ``timeout_s``; :meth:`ranges` needs two. Close the reader after use.

    A result leaves out unknown offsets and says why they are unknown. While brokers are down, commands therefore show
    an unknown lag instead of failing. With ``read_committed``, a partition ends before the first record of an open
    transaction, as it does for a consumer with that isolation level. Raises :class:`BrokerError` for properties that
    librdkafka refuses.
    """

    def __init__(
        self,
        bootstrap: str,
        properties: Mapping[str, str],
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        read_committed: bool = False,
    ) -> None:
        self._client = connect(bootstrap, properties)
        self._timeout_s, self._read_committed = timeout_s, read_committed

    def close(self) -> None:
        self._client.close()

    def latest(self, partitions: PartitionSet) -> BrokerOffsets:
        """Returns the end offsets: the high watermarks, or the last stable offsets with ``read_committed``."""
        return self._ask(partitions, LATEST)

    def earliest(self, partitions: PartitionSet) -> BrokerOffsets:
        """Returns the log start offsets."""
        return self._ask(partitions, EARLIEST)

    def refused(self, topics: Iterable[str], earlier: Mapping[str, str]) -> dict[str, str]:
        """Returns the topics that the client is not allowed to describe or to read, each with the reason. If the
        brokers do not answer about a topic, it stays as in ``earlier``. A broker before 2.3 does not tell whether the
        client may read."""
        refused = {}
        for topic, why in self._client.refused(topics, self._timeout_s).items():
            if (reason := earlier.get(topic) if why is None else why) is not None:
                refused[topic] = reason
        return refused

    def ranges(self, partitions: PartitionSet) -> BrokerRanges:
        """Returns the start and end offsets of the logs. Reads the starts first, because both only move forward."""
        starts = self.earliest(partitions)
        ends = self.latest(PartitionSet.of(starts.offsets))
        found = {tp: LogRange(starts.offsets[tp], end) for tp, end in ends.offsets.items()}
        return BrokerRanges(found, starts.note or ends.note)

    def at_time(self, partitions: PartitionSet, timestamp_ms: int) -> BrokerOffsets:
        """Returns the offset of the first record whose timestamp is ``timestamp_ms`` or later. If there is no such
        record, returns :data:`NO_SUCH_RECORD`."""
        found = self._ask(partitions, timestamp_ms)
        return BrokerOffsets(
            {tp: offset if offset >= 0 else NO_SUCH_RECORD for tp, offset in found.offsets.items()}, found.note
        )

    def _ask(self, partitions: PartitionSet, timestamp: int) -> BrokerOffsets:
        if not partitions:
            return BrokerOffsets({})
        try:
            listed = self._client.list_offsets(
                partitions, timestamp, read_committed=self._read_committed, timeout_s=self._timeout_s
            )
        except BrokerError as error:
            return BrokerOffsets({}, f"lag is unknown: {error}")
        return BrokerOffsets(listed.offsets, _sentence(listed.trouble, len(partitions)))


def _sentence(trouble: list[str], asked: int) -> str:
    if not trouble:
        return ""
    reasons = ", ".join(dict.fromkeys(trouble))
    return f"the offsets of {len(trouble)} of {asked} partitions are unknown: {reasons}"


class BrokerLog:
    """An :class:`OffsetReader` that connects on first use, so that a command that does not read offsets works without a
    broker. ``latest``, ``earliest``, ``ranges`` and ``at_time`` raise :class:`BrokerError` if no usable broker is
    registered.
    """

    def __init__(
        self,
        store: Store,
        properties: Mapping[str, str],
        on_left_out: Callable[[Unreadable], None] = log_left_out,
        *,
        read_committed: bool = False,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._store = store
        self._properties = properties
        self._on_left_out = on_left_out
        self._read_committed, self._timeout_s = read_committed, timeout_s
        self._reader: OffsetReader | None = None

    def latest(self, partitions: PartitionSet) -> BrokerOffsets:
        return self._connected().latest(partitions)

    def earliest(self, partitions: PartitionSet) -> BrokerOffsets:
        return self._connected().earliest(partitions)

    def at_time(self, partitions: PartitionSet, timestamp_ms: int) -> BrokerOffsets:
        return self._connected().at_time(partitions, timestamp_ms)

    def ranges(self, partitions: PartitionSet) -> BrokerRanges:
        return self._connected().ranges(partitions)

    def known_ranges(self, partitions: PartitionSet) -> BrokerRanges:
        """Like :meth:`ranges`, but puts the text of a :class:`BrokerError` into the note instead of raising it."""
        if not partitions:
            return BrokerRanges({})
        try:
            return self.ranges(partitions)
        except BrokerError as error:
            return BrokerRanges({}, f"lag is unknown: {error}")

    def ends(self, partitions: PartitionSet) -> Mapping[TopicPartition, int]:
        """Like :meth:`latest`, without the note. If no end is known, connects anew next time, because the brokers may
        have other addresses by then."""
        found = self.latest(partitions).offsets
        if not found:
            self.close()
        return found

    def _connected(self) -> OffsetReader:
        if self._reader is None:
            bootstrap = bootstrap_servers(self._store, self._properties, self._on_left_out)
            self._reader = OffsetReader(
                bootstrap, self._properties, self._timeout_s, read_committed=self._read_committed
            )
        return self._reader

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None


class LogRangeCache:
    """Requests the starts and ends of logs from the brokers and caches them. ``properties`` are librdkafka settings.
    Thread-safe. :meth:`read` can be used as a ``LogRanges``."""

    def __init__(self, store: Store, properties: Mapping[str, str]) -> None:
        self._log = BrokerLog(store, properties)
        self._lock = threading.Lock()
        self._known: dict[TopicPartition, tuple[float, LogRange]] = {}
        self._failed: tuple[float, str] = (0.0, "")

    def read(self, partitions: PartitionSet) -> tuple[Mapping[TopicPartition, LogRange], str]:
        """Returns the known logs, and why the rest are unknown. The offsets are at most :data:`FRESH_S` seconds
        old, unless a request has failed within the last :data:`FRESH_S` seconds."""
        now = time.monotonic()
        with self._lock:
            stale = PartitionSet.of(tp for tp in partitions if self._read_at(tp) <= now - FRESH_S)
            note = ""
            if stale and now < self._failed[0]:
                note = self._failed[1]
            elif stale:
                note = self._ask(stale, now)
            return {tp: self._known[tp][1] for tp in partitions if tp in self._known}, note

    def known(self, partitions: PartitionSet) -> tuple[Mapping[TopicPartition, LogRange], str]:
        """Like :meth:`read`, but does not query the brokers, so the offsets may be older."""
        known, (until, note) = dict(self._known), self._failed
        found = {tp: known[tp][1] for tp in partitions if tp in known}
        return found, note if time.monotonic() < until and len(found) < len(partitions) else ""

    def close(self) -> None:
        with self._lock:
            self._log.close()

    def _read_at(self, tp: TopicPartition) -> float:
        return self._known[tp][0] if tp in self._known else -FRESH_S

    def _ask(self, partitions: PartitionSet, now: float) -> str:
        found, note = self._log.known_ranges(partitions)
        for tp in partitions:  # a lag computed from an old end offset would be wrong
            self._known.pop(tp, None)
        self._known |= {tp: (now, log) for tp, log in found.items()}
        if note:
            self._failed = (time.monotonic() + FRESH_S, note)
        return note
