"""The partitions that one stream holds, those that it fetches, its progress in each, and the runs of records that it
has fetched. The application's thread and the connector's thread share this state under one lock, which is held only
for microseconds, so neither has to wait for the other's work."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from operator import length_hint
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Message

from kafka_coord.consumer.assigned_client import Key
from kafka_coord.errors import NoOffset
from kafka_coord.model import NO_OFFSET, TopicPartition

_serials = itertools.count(1)


class HeldPartition:
    """A partition that the current incarnation holds, from its start-fetcher until its stop-fetcher is carried out.

    ::

        committed ≤ consumed ≤ position          (offsets of the next record; NO_OFFSET if not known yet)

    ``handed`` follows the last record that was handed out. The fetcher may know that no record lies between it and a
    later offset, ``reached``: only transaction markers, aborted records or a gap left by compaction do. ``position`` is
    the later of the two, so it passes such offsets only once every record before them has been handed out.

    The application has the records in [consumed, handed) in hand. ``asked`` is the offset that the application itself
    has committed. ``committed`` may exceed the others only after a seek back, or after the log was truncated;
    ``may_go_back`` then lets one commit lower the stored offset. ``offered`` is the last offset of a commit that is
    under way: until it is known to be stored, nobody knows whether ``committed`` still is.
    """

    __slots__ = (
        "asked",
        "begun",
        "committed",
        "consumed",
        "failure",
        "handed",
        "may_go_back",
        "offered",
        "partition",
        "paused",
        "reached",
        "serial",
        "stopping",
    )

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        self.partition = partition
        self.handed = self.consumed = self.asked = self.committed = offset
        self.reached = self.offered = NO_OFFSET
        self.may_go_back = False
        self.begun = False
        """Whether the start-fetcher was carried out, so that the partition may be fetched."""
        self.paused = False
        self.stopping = False
        self.failure: NoOffset | None = None
        """Why the partition cannot be read until the application seeks, or ``None`` if it can be read."""
        self.serial = next(_serials)
        """The serial of the current fetch. Records with another serial were fetched before a seek, a pause or a stop,
        so they are dropped."""

    @property
    def position(self) -> int:
        """The offset of the next record to hand out."""
        return max(self.handed, self.reached)

    @position.setter
    def position(self, offset: int) -> None:
        self.handed, self.reached = offset, NO_OFFSET

    def reach(self, offset: int) -> None:
        """Records that no record lies between the last one handed out and ``offset``. These offsets count as consumed
        together with the records before them. An empty log has nothing to pass."""
        if offset == 0:
            return
        all_consumed = self.consumed >= self.handed
        self.reached = max(self.reached, offset)
        if all_consumed:
            self.mark_consumed()

    @property
    def wanted(self) -> bool:
        """Whether the partition should be fetched now."""
        return self.begun and not self.paused and not self.stopping and self.failure is None

    @property
    def fetch_from(self) -> int:
        """The offset from which to fetch, in librdkafka's notation."""
        return self.position if self.position >= 0 else int(OFFSET_BEGINNING)

    def renew(self) -> None:
        """Discards everything fetched so far by changing the serial."""
        self.serial = next(_serials)

    def mark_consumed(self) -> None:
        """Counts all records handed out as consumed."""
        self.consumed = self.position

    def start_at(self, offset: int) -> None:
        """Starts a partition without a position at an offset that the group has stored."""
        self.position = self.consumed = self.asked = self.committed = offset
        self.offered = NO_OFFSET

    def move_to(self, offset: int) -> None:
        """Continues reading from ``offset``. ``NO_OFFSET`` stands for the current beginning of the log."""
        self.position = self.consumed = offset
        if offset < max(self.committed, self.offered):
            self.may_go_back = True

    def to_commit(self, *, auto_commit: bool) -> int | None:
        """Returns the offset to store, or ``None`` if there is nothing new."""
        return self.admit(self.consumed if auto_commit else self.asked)

    def admit(self, offset: int) -> int | None:
        """Returns ``offset`` if it may be stored, otherwise ``None``. It must differ from the stored offset, and it may
        be lower only if ``may_go_back`` is set. The caller then commits it."""
        is_stored = offset == self.committed and self.offered == NO_OFFSET
        if offset == NO_OFFSET or is_stored or (offset < self.committed and not self.may_go_back):
            return None
        self.offered = offset
        return offset

    def stored(self, offset: int) -> None:
        """Records that ZooKeeper has stored ``offset``. It may be of a commit from before a seek back, of which there
        can be several under way."""
        self.committed = offset
        if self.offered == offset:
            self.offered = NO_OFFSET
        self.may_go_back = self.consumed < offset


class Run:
    """Consecutive messages of one partition, fetched under one serial. Checking once per run instead of once per
    message saves most of the cost of a record. ``reached`` is where the fetcher stood after the last message, if it is
    known that no record lies in between."""

    __slots__ = ("holding", "messages", "reached", "serial")

    def __init__(self, holding: HeldPartition, messages: list[Any], reached: int = NO_OFFSET) -> None:
        self.holding = holding
        self.serial = holding.serial
        self.messages = messages
        self.reached = reached

    def from_position(self) -> list[Any]:
        """Returns the messages that have not been handed out yet."""
        position = self.holding.position
        if self.messages[0].offset() >= position:
            return self.messages
        return [message for message in self.messages if message.offset() >= position]


class IteratedRun:
    """A run that is handed out message by message.

    ``next(rest)`` hands out a message, without taking a lock or counting; :meth:`account` works out afterwards how many
    messages were handed out. After :meth:`end`, no more messages are handed out. ``next``, ``account`` and ``end`` each
    touch the run in a single call into C, so they cannot interrupt each other. Callers of ``account`` and ``end`` hold
    the stream's lock.

    A message becomes a record only when it is handed out: creating all records of a run at once would trigger Python's
    garbage collector every time."""

    __slots__ = ("_accounted", "_messages", "holding", "reached", "rest")

    def __init__(self, holding: HeldPartition, messages: list[Any], reached: int = NO_OFFSET) -> None:
        self.holding = holding
        self.reached = reached
        self._messages = messages
        self._accounted = 0
        self.rest = iter(messages)

    def account(self) -> int:
        """Counts every record that was handed out, except the last, as consumed. Returns the number of records handed
        out since the previous call."""
        return self._up_to(len(self._messages) - length_hint(self.rest))

    def end(self) -> tuple[int, list[Any]]:
        """Like :meth:`account`, but also returns the remaining messages."""
        left = list(self.rest)
        return self._up_to(len(self._messages) - len(left)), left

    def _up_to(self, handed: int) -> int:
        more = handed - self._accounted
        if more:
            self._accounted = handed
            holding = self.holding
            holding.consumed = self._messages[handed - 2].offset() + 1 if handed > 1 else holding.position
            holding.handed = self._messages[handed - 1].offset() + 1
        if handed == len(self._messages):
            self.holding.reach(self.reached)
        return more


class FetchedRuns:
    """The runs of one stream, in the order in which they are handed out, and the partitions whose records the
    application has in hand. Only records of partitions in ``live``, which are being fetched, are handed out. Callers
    hold the stream's lock, except for ``bool``, :attr:`queued` and :meth:`forked`.
    """

    def __init__(self, live: Mapping[Key, HeldPartition]) -> None:
        self._live = live
        self._queue: deque[Run] = deque()
        self._records = 0
        self.iterated: IteratedRun | None = None
        """The run that is being handed out record by record. May be read without the lock."""
        self.in_hand: set[HeldPartition] = set()

    def __bool__(self) -> bool:
        """Returns whether there may be something to hand out."""
        return bool(self._queue) or self.iterated is not None

    @property
    def queued(self) -> bool:
        """Whether there are runs other than the run being iterated over."""
        return bool(self._queue)

    def add(self, run: Run) -> None:
        self._queue.append(run)

    def reached(self, holding: HeldPartition, offset: int) -> None:
        """Records that the fetcher has reached ``offset`` without finding a record after those already added."""
        iterated = self.iterated
        for run in reversed(self._queue):
            if run.holding is holding and run.serial == holding.serial:
                run.reached = offset
                return
        if iterated is not None and iterated.holding is holding:
            iterated.reached = offset
            self.account()
        else:
            holding.reach(offset)

    def take(self, limit: int) -> list[Message]:
        """Returns at most ``limit`` messages. From now on, the application has them in hand."""
        messages: list[Message] = []
        self.end_iteration(put_back=True)
        while len(messages) < limit and (run := self._next()) is not None:
            unread = run.from_position()
            room = limit - len(messages)
            if len(unread) > room:
                run.messages = unread[room:]
                self._queue.appendleft(run)
                unread, reached = unread[:room], NO_OFFSET
            else:
                reached = run.reached
            if unread:
                messages += unread
                run.holding.handed = unread[-1].offset() + 1
                self.in_hand.add(run.holding)
            run.holding.reach(reached)
        self._records += len(messages)
        return messages

    def take_one(self) -> Message | None:
        """Returns the next message of the run being iterated over, or the first message of the following run. Returns
        ``None`` if there is no message."""
        while True:
            if self.iterated is not None:
                message: Message | None = next(self.iterated.rest, None)
                if message is not None:
                    return message
                self.end_iteration()
            run = self._next()
            if run is None:
                return None
            self.iterated = IteratedRun(run.holding, run.from_position(), run.reached)

    def _next(self) -> Run | None:
        """Returns the next run whose partition has not been stopped, paused, lost, or moved by a seek since the
        fetch."""
        while self._queue:
            run = self._queue.popleft()
            if self._live.get(run.holding.partition) is run.holding and run.serial == run.holding.serial:
                return run
        return None

    def account(self) -> None:
        """Records how much of the run being iterated over was handed out."""
        if self.iterated is not None:
            self._handed(self.iterated, self.iterated.account())

    @property
    def records(self) -> int:
        self.account()
        return self._records

    def end_iteration(self, *, put_back: bool = False) -> None:
        """Ends the run being iterated over. Drops its remaining messages or, with ``put_back``, hands them out next."""
        iterated, self.iterated = self.iterated, None
        if iterated is not None:
            more, left = iterated.end()
            self._handed(iterated, more)
            if put_back and left:
                self._queue.appendleft(Run(iterated.holding, left, iterated.reached))

    def _handed(self, iterated: IteratedRun, more: int) -> None:
        if more:
            self.in_hand.add(iterated.holding)
            self._records += more

    def mark_consumed(self) -> None:
        """Counts everything that the application has in hand as consumed."""
        self.account()
        for holding in self.in_hand:
            holding.mark_consumed()
        self.in_hand.clear()

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Drops the fetched records of the given partitions."""
        if self._queue:
            self._queue = deque(run for run in self._queue if run.holding.partition not in partitions)
        if self.iterated is not None and self.iterated.holding.partition in partitions:
            self.end_iteration()

    def clear(self) -> None:
        """Drops everything, including the records that the application has in hand."""
        self.end_iteration()
        self._queue.clear()
        self.in_hand.clear()

    def forked(self) -> None:
        """Stops this copy, which belongs to a forked process, from handing out records. Unlike the other methods, it
        runs without the lock, which another thread may have held at the fork."""
        iterated, self.iterated = self.iterated, None
        if iterated is not None:
            iterated.end()


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
