"""The records a stream has fetched, run by run, and how far the application has come with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from operator import length_hint
from typing import Any

from confluent_kafka import Message

from kafka_coord.consumer.assigned_client import Key
from kafka_coord.consumer.held_partition import HeldPartition
from kafka_coord.model import TopicPartition


class Run:
    """Messages of one partition in a row, fetched under one serial of its holding. To ask something once per run,
    and not per message, saves most of what a record costs."""

    __slots__ = ("holding", "messages", "serial")

    def __init__(self, holding: HeldPartition, messages: list[Any]) -> None:
        self.holding = holding
        self.serial = holding.serial
        self.messages = messages

    def from_position(self) -> list[Any]:
        """The messages that are not handed out yet."""
        position = self.holding.position
        if self.messages[0].offset() >= position:
            return self.messages
        return [message for message in self.messages if message.offset() >= position]


class IteratedRun:
    """A run that is handed out message by message.

    That happens by ``next(rest)`` alone: it takes no lock and writes nothing down. :meth:`account` finds out how many
    messages were handed out; after :meth:`end` no more are. Each of the three is one call into C, so none can happen in
    the middle of another. ``account`` and ``end`` are called with the stream's lock held.

    A record is made of a message only when it is handed out. If all were made at once, Python's garbage collector would
    look for cycles among them every time."""

    __slots__ = ("_accounted", "_messages", "holding", "rest")

    def __init__(self, holding: HeldPartition, messages: list[Any]) -> None:
        self.holding = holding
        self._messages = messages
        self._accounted = 0
        self.rest = iter(messages)

    def account(self) -> int:
        """Brings the holding up to date: the application is done with every record handed out but the last. Returns
        how many records were handed out since the call before."""
        return self._up_to(len(self._messages) - length_hint(self.rest))

    def end(self) -> tuple[int, list[Any]]:
        """As :meth:`account`, with the messages that were left."""
        left = list(self.rest)
        return self._up_to(len(self._messages) - len(left)), left

    def _up_to(self, handed: int) -> int:
        more = handed - self._accounted
        if more:
            self._accounted = handed
            holding = self.holding
            holding.consumed = self._messages[handed - 2].offset() + 1 if handed > 1 else holding.position
            holding.position = self._messages[handed - 1].offset() + 1
        return more


class FetchedRuns:
    """The runs of one stream in the order to hand them out, and the partitions whose records the application has in
    hand. ``live`` are the partitions that are fetched now: only their records are handed out.

    The stream's lock is held for every call.
    """

    def __init__(self, live: Mapping[Key, HeldPartition]) -> None:
        self._live = live
        self._queue: deque[Run] = deque()
        self._records = 0
        self.iterated: IteratedRun | None = None
        """The run that is handed out record by record. May be read without the lock."""
        self.in_hand: set[HeldPartition] = set()

    def __bool__(self) -> bool:
        """Whether there may be something to hand out."""
        return bool(self._queue) or self.iterated is not None

    @property
    def queued(self) -> bool:
        """Whether runs are left besides the one being iterated over."""
        return bool(self._queue)

    def add(self, run: Run) -> None:
        """Keeps a run that was fetched."""
        self._queue.append(run)

    def take(self, limit: int) -> list[Message]:
        """At most ``limit`` messages, which are in the application's hands from now on."""
        messages: list[Message] = []
        self.end_iteration(put_back=True)
        while len(messages) < limit and (run := self._next()) is not None:
            found = run.from_position()
            room = limit - len(messages)
            if len(found) > room:
                run.messages = found[room:]
                self._queue.appendleft(run)
                found = found[:room]
            if found:
                messages += found
                run.holding.position = found[-1].offset() + 1
                self.in_hand.add(run.holding)
        self._records += len(messages)
        return messages

    def take_one(self) -> Message | None:
        """The next message of the run being iterated over, or the first of the run after it."""
        while True:
            if self.iterated is not None:
                message: Message | None = next(self.iterated.rest, None)
                if message is not None:
                    return message
                self.end_iteration()
            run = self._next()
            if run is None:
                return None
            self.iterated = IteratedRun(run.holding, run.from_position())

    def _next(self) -> Run | None:
        """The next run whose records are still wanted: its partition was not stopped, paused, moved by a seek or lost
        since they were fetched."""
        while self._queue:
            run = self._queue.popleft()
            if self._live.get(run.holding.partition) is run.holding and run.serial == run.holding.serial:
                return run
        return None

    def account(self) -> None:
        """Writes down what was handed out of the run being iterated over."""
        if self.iterated is not None:
            self._handed(self.iterated, self.iterated.account())

    @property
    def records(self) -> int:
        """How many were handed out."""
        self.account()
        return self._records

    def end_iteration(self, *, put_back: bool = False) -> None:
        """Nothing more is handed out of the run being iterated over. What is left of it is dropped, or handed out
        next."""
        iterated, self.iterated = self.iterated, None
        if iterated is not None:
            more, left = iterated.end()
            self._handed(iterated, more)
            if put_back and left:
                self._queue.appendleft(Run(iterated.holding, left))

    def _handed(self, iterated: IteratedRun, more: int) -> None:
        if more:
            self.in_hand.add(iterated.holding)
            self._records += more

    def mark_consumed(self) -> None:
        """The application is done with everything it has in hand."""
        self.account()
        for holding in self.in_hand:
            holding.mark_consumed()
        self.in_hand.clear()

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Hands out nothing of what was fetched of these."""
        if self._queue:
            self._queue = deque(run for run in self._queue if run.holding.partition not in partitions)
        if self.iterated is not None and self.iterated.holding.partition in partitions:
            self.end_iteration()

    def clear(self) -> None:
        """Drops everything, also what the application has in hand."""
        self.end_iteration()
        self._queue.clear()
        self.in_hand.clear()

    def forked(self) -> None:
        """This is a copy in another process, where nothing may be handed out. The one call without the lock: somebody
        may have held it when this process began."""
        iterated, self.iterated = self.iterated, None
        if iterated is not None:
            iterated.end()
