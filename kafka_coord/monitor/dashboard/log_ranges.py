"""Caches where logs start and end, so that the dashboard requests each at most once every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from kafka_coord.model import PartitionSet, TopicPartition
from kafka_coord.model.lag import LogRange
from kafka_coord.monitor.lag import BrokerLog
from kafka_coord.zk.store import Store

FRESH_S = 4.0


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
