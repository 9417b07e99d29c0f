"""The partitions that one stream holds, those that it fetches, and its progress in each. The application's thread and
the connector's thread share this state under one lock, which is held only for microseconds, so neither has to wait for
the other's work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping

from kafka_coord.consumer.assigned_client import Key
from kafka_coord.consumer.fetched_runs import FetchedRuns
from kafka_coord.consumer.held_partition import HeldPartition
from kafka_coord.errors import NoOffset
from kafka_coord.model import TopicPartition


class StreamPartitions:
    """The partitions of one stream. ``wake`` wakes the connector. ``changed`` is called when the partitions or offsets
    to fetch change."""

    def __init__(self, *, wake: Callable[[], None], changed: Callable[[], None]) -> None:
        self._wake = wake
        self._changed = changed
        self._held: dict[Key, HeldPartition] = {}
        self._waking = False
        self.lock = threading.Lock()
        self.live: dict[Key, HeldPartition] = {}
        """The partitions being fetched."""
        self.failing: set[HeldPartition] = set()
        """The partitions that cannot continue until the application seeks."""
        self.runs = FetchedRuns(self.live)
        self.lost_uncommitted = False
        """Whether records that the application received but did not commit belong to a lost incarnation."""
        self.orphans_in_hand = False
        """Whether the application is still working on records of a lost incarnation."""

    def fetch_points(self) -> dict[Key, tuple[int, int]]:
        """Returns the partitions to fetch, in the form that :mod:`kafka_coord.consumer.assigned_client` defines."""
        with self.lock:
            self.runs.account()
            return {key: (holding.serial, holding.fetch_from) for key, holding in self.live.items()}

    def holding(self, partition: Key) -> HeldPartition | None:
        with self.lock:
            self.runs.account()
            return self._held.get(partition)

    def holdings(self) -> list[HeldPartition]:
        with self.lock:
            self.runs.account()
            return list(self._held.values())

    # --- requests by the application, on any thread ------------------------------------------------------------------

    def mark_consumed(self) -> None:
        """Counts the records in hand as consumed when the application requests more."""
        if not self.runs.in_hand and not self.orphans_in_hand and self.runs.iterated is None:
            return
        with self.lock:
            self._mark_consumed()

    def _mark_consumed(self) -> None:
        self.runs.mark_consumed()
        if self._waking or self.orphans_in_hand:
            self._waking = self.orphans_in_hand = False
            self._wake()

    def seek(self, holding: HeldPartition, offset: int) -> None:
        """Continues reading the partition from ``offset``. ``NO_OFFSET`` stands for the beginning of the log."""
        with self.lock:
            if self._held.get(holding.partition) is not holding:
                return
            self.runs.drop({holding.partition})
            holding.move_to(offset)
            holding.failure = None
            self.failing.discard(holding)
            self._fetch_anew(holding)
        self._changed()

    def pause(self, holding: HeldPartition, *, paused: bool) -> None:
        """Pauses the partition, or resumes it where it was paused."""
        with self.lock:
            if self._held.get(holding.partition) is not holding or holding.paused == paused:
                return
            holding.paused = paused
            self._fetch_anew(holding)
        self._changed()

    def position(self, holding: HeldPartition) -> int:
        """Returns the offset of the next record to hand out."""
        with self.lock:
            self.runs.account()
            return holding.position

    def try_again(self, partition: TopicPartition) -> None:
        """Fetches the partition anew from its position."""
        with self.lock:
            self.runs.account()
            holding = self._held.get(partition)
            if holding is not None:
                self._fetch_anew(holding)
        self._changed()

    def fail(self, holding: HeldPartition, failure: NoOffset) -> None:
        """Marks a partition that cannot continue. Every read by the application raises ``failure`` until it seeks."""
        with self.lock:
            if self._held.get(holding.partition) is not holding or holding.stopping:
                return
            holding.failure = failure
            self.failing.add(holding)
            self.live.pop(holding.partition, None)
            self.runs.drop({holding.partition})
        self._changed()

    def raise_failing(self) -> None:
        """Raises the failure if any partition cannot continue."""
        with self.lock:
            failures = [holding.failure for holding in self.failing if holding.failure is not None]
        if failures:
            raise failures[0].with_traceback(None)

    def _fetch_anew(self, holding: HeldPartition) -> None:
        """Drops the partition's fetched records and fetches again from its position. The caller holds the lock."""
        holding.renew()
        self.runs.drop({holding.partition})
        if holding.wanted:
            self.live[holding.partition] = holding
        else:
            self.live.pop(holding.partition, None)

    def snapshot(self, *, with_in_hand: bool) -> dict[TopicPartition, int]:
        """Returns the offsets to store for all consumed records. With ``with_in_hand``, records in hand also count as
        consumed."""
        with self.lock:
            self.runs.account()
            if with_in_hand:
                self._mark_consumed()
            for holding in self._held.values():
                holding.asked = holding.consumed
            return offsets_of(self._held.values(), auto_commit=False)

    def ask(self, holding: HeldPartition, offset: int) -> None:
        """Records an ``offset`` that the application commits explicitly."""
        with self.lock:
            self.runs.account()
            holding.asked = offset
            holding.consumed = max(holding.consumed, offset)
            if holding.consumed >= holding.handed and holding in self.runs.in_hand:
                self.runs.in_hand.discard(holding)
                holding.consumed = max(holding.consumed, holding.position)
                if self._waking:
                    self._wake()

    # --- commands from the connector ---------------------------------------------------------------------------------

    def hold(self, holdings: Iterable[HeldPartition]) -> None:
        """Takes over partitions without fetching them yet."""
        with self.lock:
            for holding in holdings:
                self._held[holding.partition] = holding
                if holding.failure is not None:
                    self.failing.add(holding)
        self._changed()

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Starts fetching the given partitions from their positions."""
        with self.lock:
            for partition in partitions:
                holding = self._held.get(partition)
                if holding is not None and not holding.begun:
                    holding.begun = True
                    self._fetch_anew(holding)
        self._changed()

    def stop(self, partitions: Collection[TopicPartition]) -> None:
        """Stops returning records of the given partitions."""
        with self.lock:
            for partition in partitions:
                holding = self._held.get(partition)
                if holding is not None:
                    holding.stopping = True
                    self.failing.discard(holding)
                    self.live.pop(partition, None)
            self.runs.drop(set(partitions))

    def in_hand(self, partitions: Iterable[TopicPartition] | None = None) -> bool:
        """Returns whether the application has records of the given partitions (default: all) in hand. If so, the
        connector is woken once the application has finished them."""
        with self.lock:
            self.runs.account()
            wanted = self._held if partitions is None else partitions
            if any(self._held.get(partition) in self.runs.in_hand for partition in wanted):
                self._waking = True
                return True
            return False

    def release(self, partitions: Collection[TopicPartition]) -> list[HeldPartition]:
        """Releases and returns stopped partitions. Stops fetching them and drops their fetched records."""
        with self.lock:
            self.runs.drop(set(partitions))
            released = [holding for p in partitions if (holding := self._held.pop(p, None)) is not None]
            for holding in released:
                self.live.pop(holding.partition, None)
                self.runs.in_hand.discard(holding)
                self.failing.discard(holding)
        self._changed()
        return released

    def abandon(self) -> None:
        """Releases all partitions at once, after a lost membership."""
        with self.lock:
            self.runs.end_iteration()
            self.orphans_in_hand = self.orphans_in_hand or bool(self.runs.in_hand)
            self.lost_uncommitted = self.lost_uncommitted or any(
                holding.handed > max(holding.committed, 0) for holding in self._held.values()
            )
            self._held.clear()
            self.live.clear()
            self.runs.clear()
            self.failing.clear()
        self._changed()

    def close(self) -> None:
        """Stops returning records for good."""
        with self.lock:
            self.live.clear()
            self.runs.end_iteration()

    def uncommitted(self, *, auto_commit: bool) -> dict[TopicPartition, int]:
        """Returns the offsets to commit for the held partitions."""
        with self.lock:
            self.runs.account()
            return offsets_of(self._held.values(), auto_commit=auto_commit)

    def stored(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Records that ZooKeeper has stored ``offsets``."""
        with self.lock:
            self.runs.account()
            for partition, offset in offsets.items():
                holding = self._held.get(partition)
                if holding is not None:
                    holding.stored(offset)


def offsets_of(holdings: Iterable[HeldPartition], *, auto_commit: bool) -> dict[TopicPartition, int]:
    found = ((holding.partition, holding.to_commit(auto_commit=auto_commit)) for holding in holdings)
    return {partition: offset for partition, offset in found if offset is not None}
