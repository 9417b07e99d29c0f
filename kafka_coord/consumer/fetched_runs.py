"""The records that a stream has fetched, in runs, and how many of them the application has received and consumed."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from operator import length_hint
from typing import Any

from confluent_kafka import Message

from kafka_coord.consumer.assigned_client import Key
from kafka_coord.consumer.held_partition import HeldPartition
from kafka_coord.model import NO_OFFSET, TopicPartition


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
