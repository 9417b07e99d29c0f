"""Tracks the partitions that a query owns, and carries out the coordinator's commands between Spark's micro-batches.
Does no I/O."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from kafka_coord.channel.operations import Offsets
from kafka_coord.consumer.stream_partitions import HeldPartition
from kafka_coord.model import NO_OFFSET, StartPoint, TopicPartition
from kafka_coord.spark.ranges import NO_RANGES, OffsetRanges

log = logging.getLogger(__name__)


class BatchHoldings:
    """Implements :class:`kafka_coord.consumer.command_loop.Fetchers` for a query that reads in micro-batches.

    The application has records in hand from the moment when Spark plans their micro-batch until it plans the next one,
    because only then has the checkpoint stored the previous micro-batch. So a stop-fetcher is acknowledged between two
    micro-batches, with the end offsets of the last micro-batch. The connector's thread carries out commands, and
    Spark's thread plans. One lock protects the state that they share.
    """

    def __init__(
        self, wake: Callable[[], None], *, from_the_end: bool = False, later_from_the_end: bool = False
    ) -> None:
        """With ``from_the_end``, a partition without a stored offset starts at its end. ``later_from_the_end`` decides
        instead for partitions that came into being after the group's subscription first covered their topics."""
        self._wake = wake
        self._from_the_end, self._later_from_the_end = from_the_end, later_from_the_end
        self._starting: dict[TopicPartition, int | None] = {}
        """The partitions without a position, each with its listed end once that is known."""
        self._reasons: dict[TopicPartition, str] = {}
        self._refused: dict[str, str] = {}
        self._lock = threading.Lock()
        self._held: dict[TopicPartition, HeldPartition] = {}
        self._in_batch: set[TopicPartition] = set()
        """The partitions of the current micro-batch, including partitions that were lost after it was planned."""
        self._orphans: set[TopicPartition] = set()
        self._awaited = False
        self.changed = threading.Event()
        """Set when partitions become readable, are being stopped or are lost."""

    # --- on Spark's thread -------------------------------------------------------------------------------------------

    def done(self) -> frozenset[TopicPartition]:
        """Records that Spark has stored its current micro-batch. Returns the batch's partitions that were lost while it
        ran. Their new offsets are not committed to the group, even if the partitions have returned since.
        """
        with self._lock:
            for partition in self._in_batch - self._orphans:
                holding = self._held.get(partition)
                if holding is not None:
                    holding.mark_consumed()
            lost = frozenset(self._orphans)
            self._in_batch.clear()
            self._orphans.clear()
            awaited, self._awaited = self._awaited, False
        self._wake()
        if awaited:
            log.info("released the stopped partitions, because their micro-batch is committed")
        return lost

    def wanted(self) -> dict[TopicPartition, int]:
        """Returns the partitions that a micro-batch may read now and the next offset of each (``NO_OFFSET`` if it is
        unknown)."""
        with self._lock:
            return {tp: holding.position for tp, holding in self._held.items() if holding.wanted}

    def take(self, ranges: OffsetRanges) -> OffsetRanges:
        """Plans the given ranges, except in partitions that are no longer held or are at another position. Returns the
        planned ranges.
        """
        with self._lock:
            taken: dict[TopicPartition, list[tuple[int, int]]] = {}
            for partition in ranges.partitions:
                holding = self._held.get(partition)
                first = ranges.of_partition(partition)[0]
                if holding is None or not holding.wanted or holding.position != first.start:
                    continue
                holding.position = first.end
                taken[partition] = [(first.start, first.end)]
            self._in_batch |= taken.keys()
            return OffsetRanges(taken)

    def skip(self, ranges: OffsetRanges) -> OffsetRanges:
        """Continues after ranges that an earlier run of the query has read and stored, but not committed to the group.
        Skips only ranges of held partitions and returns the skipped ranges.
        """
        with self._lock:
            skipped: dict[TopicPartition, list[tuple[int, int]]] = {}
            for partition in ranges.partitions:
                holding = self._held.get(partition)
                for start, end in ranges.of_partition(partition):
                    if holding is None or not holding.wanted:
                        continue
                    if start <= holding.position < end:
                        skipped[partition] = [(holding.position, end)]
                        holding.move_to(end)
        self._wake()
        return OffsetRanges(skipped) if skipped else NO_RANGES

    def move(self, partition: TopicPartition, offset: int) -> None:
        """Continues reading the partition at ``offset``. Called when the partition's position is unknown or no longer
        in the log."""
        with self._lock:
            holding = self._held.get(partition)
            if holding is not None:
                holding.move_to(offset)
        self._wake()

    def starting(self) -> frozenset[TopicPartition]:
        """Returns the partitions that start at an end that is not known yet."""
        with self._lock:
            return frozenset(self._starting)

    def first_ends(self, ends: Mapping[TopicPartition, int], reasons: Mapping[TopicPartition, str]) -> None:
        """Passes on the listed ends of partitions in :meth:`starting`, which the group then keeps, and why the others
        are not known."""
        with self._lock:
            for partition in self._starting:
                if partition in ends and self._starting[partition] is None:
                    self._starting[partition] = ends[partition]
            self._reasons = dict(reasons)
        self._wake()

    def refuse(self, topics: Mapping[str, str]) -> None:
        """Records which topics the query may not read, each with the reason."""
        with self._lock:
            changed, self._refused = self._refused != topics, dict(topics)
        if changed:
            self._wake()

    def stored_up_to(self, partition: TopicPartition) -> int | None:
        """Returns the group's stored offset of the partition (``NO_OFFSET`` if none is stored), or ``None`` if the
        partition is not held."""
        with self._lock:
            holding = self._held.get(partition)
            return None if holding is None else holding.committed

    # --- on the connector's thread -----------------------------------------------------------------------------------

    def hold(self, starts: Mapping[TopicPartition, StartPoint]) -> None:
        with self._lock:
            for partition, start in starts.items():
                if partition not in self._held:
                    self._held[partition] = HeldPartition(partition, start.offset)
                    at_the_end = self._later_from_the_end if start.later else self._from_the_end
                    if start.offset == NO_OFFSET and at_the_end:
                        self._starting[partition] = None

    def unresolved(self) -> Mapping[TopicPartition, str]:
        with self._lock:
            return {partition: self._reasons.get(partition, "") for partition in self._starting}

    def listed_ends(self) -> Offsets:
        with self._lock:
            return {partition: end for partition, end in self._starting.items() if end is not None}

    def resolve(self, offsets: Offsets) -> None:
        with self._lock:
            for partition in self._starting.keys() & offsets.keys():
                self._held[partition].start_at(offsets[partition])
                del self._starting[partition]

    def refused(self) -> Mapping[str, str]:
        with self._lock:
            return dict(self._refused)

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        with self._lock:
            for partition in partitions:
                if (holding := self._held.get(partition)) is not None:
                    holding.begun = True
        self.changed.set()

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        with self._lock:
            for partition in partitions:
                if (holding := self._held.get(partition)) is not None:
                    holding.stopping = True
        self.changed.set()

    def in_hand(self, partitions: Iterable[TopicPartition]) -> bool:
        with self._lock:
            held_up = any(partition in self._in_batch for partition in partitions)
            self._awaited = self._awaited or held_up
            return held_up

    def held_partitions(self) -> Iterable[TopicPartition]:
        with self._lock:
            return list(self._held)

    def release(self, partitions: Iterable[TopicPartition]) -> Offsets:
        with self._lock:
            gone = [self._held.pop(partition) for partition in partitions if partition in self._held]
            for holding in gone:
                self._starting.pop(holding.partition, None)
        return _to_commit(gone)

    def uncommitted(self, partitions: Iterable[TopicPartition] | None = None) -> Offsets:
        with self._lock:
            wanted = self._held if partitions is None else [tp for tp in partitions if tp in self._held]
            return _to_commit([self._held[tp] for tp in wanted])

    def admissible(self, offsets: Offsets) -> Offsets:
        with self._lock:
            return {
                tp: offset
                for tp, offset in offsets.items()
                if tp in self._held and self._held[tp].admit(offset) is not None
            }

    def stored(self, offsets: Offsets) -> None:
        with self._lock:
            for partition, offset in offsets.items():
                if (holding := self._held.get(partition)) is not None:
                    holding.stored(offset)

    def abandon(self) -> Iterable[TopicPartition]:
        with self._lock:
            gone = list(self._held)
            self._orphans |= self._in_batch & set(gone)
            self._held.clear()
            self._starting.clear()
        self.changed.set()
        return gone

    def orphans_in_hand(self) -> bool:
        with self._lock:
            return bool(self._orphans)


def _to_commit(holdings: Iterable[HeldPartition]) -> Offsets:
    found: dict[TopicPartition, int] = {}
    for holding in holdings:
        offset = holding.to_commit(auto_commit=True)
        if offset is not None and offset != NO_OFFSET:
            found[holding.partition] = offset
    return found
