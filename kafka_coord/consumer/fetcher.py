"""One stream of a consumer: what it holds, what has been fetched, what the application has in hand.

Two threads meet here. The *application's* takes records; the *connector's* begins and releases partitions. Neither ever
waits for the other: all state is behind ``_lock``, held for microseconds, and librdkafka is told of changes by
:class:`~kafka_coord.consumer.assigned_client.AssignedClient`. So a partition can be stopped, and the stop acknowledged,
while the application is blocked in ``poll``: what comes of it from then on is dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import groupby
from operator import length_hint
from typing import Any

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException, Message

from kafka_coord.consumer.assigned_client import AssignedClient, Key
from kafka_coord.consumer.held_partition import HeldPartition
from kafka_coord.consumer.record import Record
from kafka_coord.consumer.reset import OffsetReset
from kafka_coord.errors import BrokerError, ConsumerClosed, ConsumerError, NoOffset
from kafka_coord.model import NO_OFFSET, TopicPartition

log = logging.getLogger(__name__)

_monotonic = time.monotonic

_IDLE_SLICE_S = 0.1
"""How long to wait at most with nothing to fetch: Python sees signals only in between."""

DEFAULT_MAX_RECORDS = 500
"""Kafka's ``max.poll.records``."""

_BATCH = 320
"""How many messages are taken from librdkafka at once, but for who asks for more than ``DEFAULT_MAX_RECORDS``. Of each
a record is made: together they stay below the 700 new objects after which Python looks for cycles of garbage, if the
application lets go of a batch before the next."""

_UNKNOWN_TO_BROKER = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)
_FORBIDDEN = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED})

_error, _topic, _partition = Message.error, Message.topic, Message.partition
"""Called by C for each message of a batch: several times faster than anything in Python that calls them."""


class _Run:
    """Messages of one partition that came one after the other, fetched under one serial of its holding. What is asked
    once for a run, and not for each of its messages, is most of what a record costs."""

    __slots__ = ("holding", "messages", "serial")

    def __init__(self, holding: HeldPartition, messages: list[Any]) -> None:
        self.holding = holding
        self.serial = holding.serial
        self.messages = messages

    def from_position(self) -> list[Any]:
        """Those that are not handed out yet."""
        position = self.holding.position
        if self.messages[0].offset() >= position:
            return self.messages
        return [message for message in self.messages if message.offset() >= position]


class _Iterated:
    """A run that is handed out message by message, by ``next(rest)`` and nothing else: no lock, and nothing written
    down. How far that has come is found out when somebody wants to know (:meth:`account`), and it goes no further once
    :meth:`end` has taken what is left. Each of the three is one call into C, so that none happens in the midst of
    another; ``account`` and ``end`` are called with the fetcher's lock held.

    A record is made of a message only when it is handed out: with all of them at once Python's collector would look for
    cycles among them every time."""

    __slots__ = ("_accounted", "_messages", "holding", "rest")

    def __init__(self, holding: HeldPartition, messages: list[Any]) -> None:
        self.holding = holding
        self._messages = messages
        self._accounted = 0
        self.rest = iter(messages)

    def account(self) -> int:
        """Brings the holding up to date: what was handed out before the last record is done with. How many more records
        were handed out than at the last time."""
        return self._up_to(len(self._messages) - length_hint(self.rest))

    def end(self) -> tuple[int, list[Any]]:
        """As :meth:`account`, and what was left."""
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


class Fetcher:
    """The fetcher behind one stream.

    ``hands_out_until`` says until when (monotonic) the membership is proven to be ours; ``check`` raises what the
    application has to know (closed, failed); ``wake`` wakes the connector.
    """

    def __init__(
        self,
        number: int,
        *,
        reset: OffsetReset,
        hands_out_until: Callable[[], float],
        check: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        self.number = number
        self._records = 0
        self.reader: threading.Thread | None = None
        """The thread that took records last."""
        self.lost_uncommitted = False
        """What the application was handed and did not commit belongs to an incarnation that is lost."""
        self.orphans_in_hand = False
        """The application still works on records of an incarnation that is lost."""
        self._reset_policy = reset
        self._hands_out_until = hands_out_until
        self._check = check
        self._wake = wake
        self._lock = threading.Lock()
        self._client = AssignedClient(self._wanted)
        self._changed = threading.Event()
        self._held: dict[Key, HeldPartition] = {}
        self._live: dict[Key, HeldPartition] = {}
        self._failing: set[HeldPartition] = set()
        self._buffer: deque[_Run] = deque()
        self._iterated: _Iterated | None = None
        """The run that is handed out record by record, until ``_until`` (monotonic)."""
        self._until = 0.0
        self._errors: list[tuple[HeldPartition, KafkaError]] = []
        self._in_hand: set[HeldPartition] = set()
        self._settling_wakes = False
        self._taker: threading.Thread | None = None

    # --- the application's thread ------------------------------------------------------------------------------------

    def take(self, limit: int, timeout_s: float) -> list[Record]:
        """At least one record and at most ``limit``; none if none came within ``timeout_s``.

        Coming here says that all records handed out before are done with.
        """
        return [*map(Record, self._take(limit, timeout_s, limit if limit > DEFAULT_MAX_RECORDS else _BATCH))]

    def take_messages(self, limit: int, timeout_s: float) -> list[Message]:
        """As :meth:`take`, of the messages themselves."""
        return self._take(limit, timeout_s, max(limit, DEFAULT_MAX_RECORDS))

    def _take(self, limit: int, timeout_s: float, at_once: int) -> list[Message]:
        """``at_once`` are taken from librdkafka at most."""
        self._enter()
        try:
            self.lost_uncommitted = False
            self.settle()
            deadline = time.monotonic() + timeout_s
            while True:
                self._check()
                messages = self._hand_out(limit)
                if messages:
                    return messages
                remaining = deadline - time.monotonic()
                self._fill(max(0.0, remaining), at_once)
                if remaining <= 0:
                    self._check()
                    return self._hand_out(limit)
        finally:
            self._taker = None

    def take_one(self, timeout_s: float) -> Record | None:
        """As :meth:`take` for one record."""
        record = self.next_of_run()
        if record is not None:
            return record
        self._enter()
        try:
            self.lost_uncommitted = False
            self.settle()
            deadline = time.monotonic() + timeout_s
            while True:
                self._check()
                record = self._hand_out_one()
                remaining = deadline - time.monotonic()
                if record is not None or remaining <= 0:
                    return record
                self._fill(remaining, _BATCH)
        finally:
            self._taker = None

    def next_of_run(self) -> Record | None:
        """The next record of the run being iterated over, if there is one that may be handed out without asking
        anything but the clock; ``None``: ask :meth:`take_one`. The one before is done with."""
        iterated = self._iterated
        if iterated is None or self._failing or _monotonic() >= self._until:
            return None
        message = next(iterated.rest, None)
        return None if message is None else Record(message)

    def iterate(self, take_next: Callable[[], Record]) -> Iterator[Record]:
        """Records as they come, until the consumer is closed: :meth:`next_of_run`, written out where each call counts,
        and ``take_next`` where it has none."""
        while True:
            iterated = self._iterated
            if iterated is not None:
                rest = iterated.rest
                while _monotonic() < self._until and not self._failing:
                    message = next(rest, None)
                    if message is None:
                        break
                    yield Record(message)
            try:
                record = take_next()
            except ConsumerClosed:
                return
            yield record

    @property
    def records(self) -> int:
        """How many were handed out."""
        with self._lock:
            self._account()
            return self._records

    def _enter(self) -> None:
        me = threading.current_thread()
        with self._lock:
            if self._taker not in {None, me}:
                raise ConsumerError(
                    f"stream {self.number} is being read by another thread: read each stream from one thread,"
                    " and give the consumer as many streams as there are threads"
                )
            self._taker = self.reader = me

    def settle(self) -> None:
        """The application came back: what it had in hand counts as consumed."""
        if not self._in_hand and not self.orphans_in_hand and self._iterated is None:
            return
        with self._lock:
            self._account()
            for holding in self._in_hand:
                holding.settle()
            self._nothing_in_hand()

    def _nothing_in_hand(self) -> None:
        self._in_hand.clear()
        if self._settling_wakes or self.orphans_in_hand:
            self._settling_wakes = self.orphans_in_hand = False
            self._wake()

    def _hand_out(self, limit: int) -> list[Message]:
        messages: list[Message] = []
        if not self._may_hand_out():
            return messages
        with self._lock:
            self._end_run(put_back=True)
            while len(messages) < limit and (run := self._next_run()) is not None:
                found = run.from_position()
                room = limit - len(messages)
                if len(found) > room:
                    run.messages = found[room:]
                    self._buffer.appendleft(run)
                    found = found[:room]
                if found:
                    messages += found
                    run.holding.position = found[-1].offset() + 1
                    self._in_hand.add(run.holding)
            self._records += len(messages)
        return messages

    def _hand_out_one(self) -> Record | None:
        """The first record of what is left of the run being iterated over, else of the next one."""
        if not self._may_hand_out():
            return None
        until = self._hands_out_until()
        with self._lock:
            self._until = until
            while True:
                if self._iterated is not None:
                    message = next(self._iterated.rest, None)
                    if message is not None:
                        return Record(message)
                    self._end_run()
                run = self._next_run()
                if run is None:
                    return None
                self._iterated = _Iterated(run.holding, run.from_position())

    def _account(self) -> None:
        """Writes down what was handed out of the run being iterated over. The lock is held."""
        if self._iterated is not None:
            self._handed(self._iterated, self._iterated.account())

    def _end_run(self, *, put_back: bool = False) -> None:
        """Nothing more is handed out of the run being iterated over; what is left is dropped, or the next to be handed
        out. The lock is held."""
        iterated, self._iterated = self._iterated, None
        if iterated is not None:
            more, left = iterated.end()
            self._handed(iterated, more)
            if put_back and left:
                self._buffer.appendleft(_Run(iterated.holding, left))

    def _handed(self, iterated: _Iterated, more: int) -> None:
        if more:
            self._in_hand.add(iterated.holding)
            self._records += more

    def _may_hand_out(self) -> bool:
        """Raises what keeps a partition from going on."""
        if self._failing:
            self._raise_failing()
        if not self._buffer and self._iterated is None:
            return False
        if self._hands_out_until() <= time.monotonic():
            self._wake()
            return False
        return True

    def _next_run(self) -> _Run | None:
        """The next one of what is still wanted: not stopped, paused, moved or lost since it was fetched. The lock is
        held."""
        while self._buffer:
            run = self._buffer.popleft()
            if self._live.get(run.holding.partition) is run.holding and run.serial == run.holding.serial:
                return run
        return None

    def _raise_failing(self) -> None:
        with self._lock:
            failures = [holding.failure for holding in self._failing if holding.failure is not None]
        if failures:
            raise failures[0].with_traceback(None)

    def _fill(self, timeout_s: float, at_once: int) -> None:
        """Waits for records for a moment; those that come are in the buffer afterwards."""
        self._changed.clear()
        if self._buffer or not self._live or not self._client.fetch(timeout_s, at_once, self._take_in):
            self._changed.wait(min(timeout_s, _IDLE_SLICE_S))
        while self._errors:
            self._on_error(*self._errors.pop())

    def _take_in(self, messages: list[Any], serials: Mapping[Key, int]) -> None:
        """Keeps what was fetched for what is wanted now: not since stopped, paused, moved elsewhere by a seek, …

        What is dropped of a partition that is still held is fetched again, as its serial has changed.
        """
        with self._lock:
            if any(map(_error, messages)):
                messages = self._without_errors(messages, serials)
            for topic, of_topic in groupby(messages, _topic):
                for partition, found in groupby(of_topic, _partition):
                    key = (topic, partition)
                    holding = self._live.get(key)
                    if holding is not None and serials.get(key) == holding.serial:
                        self._buffer.append(_Run(holding, list(found)))

    def _without_errors(self, messages: list[Any], serials: Mapping[Key, int]) -> list[Any]:
        """The records among these; the errors are noted. The lock is held."""
        records = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
                continue
            key = (message.topic(), message.partition())
            holding = self._live.get(key)
            if holding is not None and serials.get(key) == holding.serial:
                self._errors.append((holding, error))
            elif message.topic() is None:
                log.warning("heard from librdkafka error=%s: %s", error.name(), error.str())
        return records

    # --- errors ------------------------------------------------------------------------------------------------------

    def _on_error(self, holding: HeldPartition, error: KafkaError) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            return
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._out_of_range(holding, error)
        elif code in _FORBIDDEN:
            raise BrokerError(f"may not read {holding.partition}: {error.str()}")
        else:
            log.warning("could not fetch partition=%s error=%s: %s", holding.partition, error.name(), error.str())
            if code in _UNKNOWN_TO_BROKER:
                self._client.learn(holding.partition.topic)

    def _out_of_range(self, holding: HeldPartition, error: KafkaError) -> None:
        """The offset is not in the log: retention or truncation took it, or the topic was made anew.

        librdkafka runs with ``auto.offset.reset=error`` always. Its own reset would move the position without a word,
        and one that moves back (a topic made anew) could not be told from records brought twice.
        """
        where = f"offset {holding.position} of {holding.partition} is not in the log ({error.str()})"
        if self._reset_policy is OffsetReset.ERROR:
            self._fail(holding, NoOffset(f"{where}; auto_offset_reset is 'error': seek() to where to go on"))
            return
        offset = NO_OFFSET
        if self._reset_policy is OffsetReset.LATEST:
            try:
                offset = self._client.end_of(holding.partition)
            except KafkaException as failure:
                log.warning("could not reset partition=%s: %s; trying again", holding.partition, failure)
                offset = holding.position  # fails the same way, and so comes back here
        log.warning("reset partition=%s to=%s reason=%r", holding.partition, self._reset_policy.value, where)
        self.seek(holding, offset)

    def _fail(self, holding: HeldPartition, failure: NoOffset) -> None:
        """This partition cannot go on by itself; the application hears of it at every call until it seeks."""
        with self._lock:
            if self._held.get(holding.partition) is not holding or holding.stopping:
                return
            holding.failure = failure
            self._failing.add(holding)
            self._live.pop(holding.partition, None)
            self._purge({holding.partition})
        self._fetch_what_is_live()

    # --- what is fetched ---------------------------------------------------------------------------------------------

    def _wanted(self) -> dict[Key, tuple[int, int]]:
        with self._lock:
            self._account()
            return {key: (holding.serial, holding.fetch_from) for key, holding in self._live.items()}

    def _fetch_what_is_live(self) -> None:
        self._client.changed()
        self._changed.set()

    def _renew(self, holding: HeldPartition) -> None:
        """Begins again at its position; what was fetched of it so far is not wanted. The lock is held."""
        holding.renew()
        self._purge({holding.partition})
        if holding.wanted:
            self._live[holding.partition] = holding
        else:
            self._live.pop(holding.partition, None)

    def _purge(self, partitions: set[TopicPartition]) -> None:
        if self._buffer:
            self._buffer = deque(run for run in self._buffer if run.holding.partition not in partitions)
        if self._iterated is not None and self._iterated.holding.partition in partitions:
            self._end_run()

    def forked(self) -> None:
        """This is a copy in another process, where nothing may be handed out: see ``check``. Takes no lock, which
        somebody may have held when this process began."""
        iterated, self._iterated = self._iterated, None
        if iterated is not None:
            iterated.end()

    def use(self, client: KafkaConsumer) -> None:
        """Fetches with this client from now on."""
        self._client.use(client)
        self._changed.set()

    def close(self) -> None:
        """Fetches nothing any more, and closes the client."""
        with self._lock:
            self._live.clear()
            self._end_run()
        self._client.close()
        self._changed.set()

    # --- the application's wishes, any thread ------------------------------------------------------------------------

    def holding(self, partition: Key) -> HeldPartition | None:
        with self._lock:
            self._account()
            return self._held.get(partition)

    def holdings(self) -> list[HeldPartition]:
        with self._lock:
            self._account()
            return list(self._held.values())

    def seek(self, holding: HeldPartition, offset: int) -> None:
        """Goes on from ``offset`` (``NO_OFFSET``: the beginning of the log)."""
        with self._lock:
            if self._held.get(holding.partition) is not holding:
                return
            self._purge({holding.partition})
            holding.move_to(offset)
            holding.failure = None
            self._failing.discard(holding)
            self._renew(holding)
        self._fetch_what_is_live()

    def pause(self, holding: HeldPartition, *, paused: bool) -> None:
        """Hands out nothing of it, or goes on where it was."""
        with self._lock:
            if self._held.get(holding.partition) is not holding or holding.paused == paused:
                return
            holding.paused = paused
            self._renew(holding)
        self._fetch_what_is_live()

    def snapshot(self, *, with_in_hand: bool) -> dict[TopicPartition, int]:
        """For a commit of all that was consumed: counts what is in hand as consumed if told so."""
        with self._lock:
            self._account()
            if with_in_hand:
                for holding in self._in_hand:
                    holding.settle()
                self._nothing_in_hand()
            for holding in self._held.values():
                holding.asked = holding.consumed
            return offsets_of(self._held.values(), auto_commit=False)

    def ask(self, holding: HeldPartition, offset: int) -> None:
        """The application commits ``offset`` of this partition by itself."""
        with self._lock:
            self._account()
            holding.asked = offset
            holding.consumed = max(holding.consumed, offset)
            if holding.consumed == holding.position and holding in self._in_hand:
                self._in_hand.discard(holding)
                if self._settling_wakes:
                    self._wake()

    # --- the connector's thread --------------------------------------------------------------------------------------

    def hold(self, holdings: Iterable[HeldPartition]) -> None:
        """Takes partitions over without fetching them yet."""
        with self._lock:
            for holding in holdings:
                self._held[holding.partition] = holding
                if holding.failure is not None:
                    self._failing.add(holding)
        self._changed.set()

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetches them from their positions."""
        with self._lock:
            for partition in partitions:
                holding = self._held.get(partition)
                if holding is not None and not holding.begun:
                    holding.begun = True
                    self._renew(holding)
        self._fetch_what_is_live()

    def stop(self, partitions: Collection[TopicPartition]) -> None:
        """From now on hands out nothing of these."""
        with self._lock:
            for partition in partitions:
                holding = self._held.get(partition)
                if holding is not None:
                    holding.stopping = True
                    self._failing.discard(holding)
                    self._live.pop(partition, None)
            self._purge(set(partitions))

    def in_hand(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether the application has a record of these; if so, the connector is woken when it no longer has."""
        with self._lock:
            self._account()
            if any(self._held.get(partition) in self._in_hand for partition in partitions):
                self._settling_wakes = True
                return True
            return False

    def in_hand_of_others(self, closing: threading.Thread) -> bool:
        """Whether a living thread other than ``closing`` has records in hand; if so, the connector is woken when it no
        longer has."""
        reader = self.reader
        if reader is None or reader is closing or not reader.is_alive():
            return False
        return self.in_hand(holding.partition for holding in list(self._held.values()))

    def release(self, partitions: Collection[TopicPartition]) -> list[HeldPartition]:
        """Lets stopped partitions go: no longer fetched, what is queued of them dropped."""
        with self._lock:
            self._purge(set(partitions))
            released = [holding for p in partitions if (holding := self._held.pop(p, None)) is not None]
            for holding in released:
                self._live.pop(holding.partition, None)
                self._in_hand.discard(holding)
                self._failing.discard(holding)
        self._fetch_what_is_live()
        return released

    def abandon(self) -> None:
        """Lets everything go at once (the lost-connection procedure)."""
        with self._lock:
            self._end_run()
            self.orphans_in_hand = self.orphans_in_hand or bool(self._in_hand)
            self.lost_uncommitted = self.lost_uncommitted or any(
                holding.position > max(holding.committed, 0) for holding in self._held.values()
            )
            self._held.clear()
            self._live.clear()
            self._buffer.clear()
            self._in_hand.clear()
            self._failing.clear()
        self._fetch_what_is_live()

    def uncommitted(self, *, auto_commit: bool) -> dict[TopicPartition, int]:
        """What there is to commit of what is held."""
        with self._lock:
            self._account()
            return offsets_of(self._held.values(), auto_commit=auto_commit)

    def stored(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These offsets are in ZooKeeper now."""
        with self._lock:
            self._account()
            for partition, offset in offsets.items():
                holding = self._held.get(partition)
                if holding is not None:
                    holding.stored(offset)


def offsets_of(holdings: Iterable[HeldPartition], *, auto_commit: bool) -> dict[TopicPartition, int]:
    """What there is to commit of these."""
    found = ((holding.partition, holding.to_commit(auto_commit=auto_commit)) for holding in holdings)
    return {partition: offset for partition, offset in found if offset is not None}
