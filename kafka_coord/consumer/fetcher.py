"""One stream: its fetcher, which takes records from librdkafka and hands them to the application, the errors that
librdkafka reports for a partition, and the stream as the application sees it.

Meanwhile, the connector starts and releases the stream's partitions (:class:`.stream_partitions.StreamPartitions`). The
two never wait for each other: the connector can stop a partition and acknowledge the stop while the application is
blocked in ``poll``, and the fetcher then drops any records of that partition that still arrive.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any, Generic, Never

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException, Message

from kafka_coord.consumer.assigned_client import AssignedClient, Key
from kafka_coord.consumer.other_clients import check_call
from kafka_coord.consumer.record import K, Record, V
from kafka_coord.consumer.settings import OffsetReset
from kafka_coord.consumer.stream_partitions import HeldPartition, Run, StreamPartitions
from kafka_coord.errors import ConsumerClosed, ConsumerError, NoOffset
from kafka_coord.kafka.librdkafka import is_about_no_group
from kafka_coord.model import NO_OFFSET, TopicPartition

log = logging.getLogger(__name__)

UNREADABLE = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)
"""The errors that last until the cluster or its operator changes something. The client goes on trying."""

_TRUNCATED = re.compile(r"truncation detected .*broker end offset is (\d+)")
"""What librdkafka says when the log of a new leader has lost the end of the epoch from which the client has read
(KIP-320). It asks with OffsetForLeaderEpoch at each change of leader, and tells the end only in this text."""


_monotonic = time.monotonic
_SAID_AGAIN_S = 60.0
"""How long an error of a partition that the broker repeats at each fetch is not said again, in seconds."""


class FetchErrors:
    """Handles the errors of one stream, on the application's thread and without the stream's lock."""

    def __init__(
        self,
        partitions: StreamPartitions,
        client: AssignedClient,
        reset: OffsetReset,
        troubles: Callable[[TopicPartition, KafkaError], None],
    ) -> None:
        self._partitions = partitions
        self._client = client
        self._reset = reset
        self._troubles = troubles
        self._said: dict[tuple[TopicPartition, int], float] = {}

    def handle(self, holding: HeldPartition, error: KafkaError) -> None:
        """Recovers from an error, or reports that the partition cannot be read for now."""
        code = error.code()
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            truncated = _TRUNCATED.search(error.str())
            if truncated is not None:
                self._truncated(holding, int(truncated[1]))
            else:
                self._out_of_range(holding, error)
        elif code in UNREADABLE:
            self._troubles(holding.partition, error)
            self._client.learn(holding.partition.topic)
        elif (now := _monotonic()) >= self._said.get((holding.partition, code), now):  # each fetch fails anew
            self._said[holding.partition, code] = now + _SAID_AGAIN_S
            log.warning("could not fetch partition=%s error=%s: %s", holding.partition, error.name(), error.str())

    def _truncated(self, holding: HeldPartition, end: int) -> None:
        """Continues where the log was cut: at ``end``, the end of the epoch of the last record that was fetched. The
        application may not have come that far; then it has missed nothing."""
        position, partition = self._partitions.position(holding), holding.partition
        if position <= end:
            log.info("fetching partition=%s anew from offset=%d: its log was cut at %d", partition, position, end)
            self._partitions.try_again(partition)
            return
        what = (
            f"the log of {partition} was cut at {end}, and the last {position - end} offsets before {position} are gone"
        )
        if self._reset is OffsetReset.ERROR:
            failure = NoOffset(f"{what}; auto_offset_reset is 'error': seek() to {end} to read what replaces them")
            self._partitions.fail(holding, failure)
            return
        log.warning(
            "continuing partition=%s at the end of the leader's epoch offset=%d: %s",
            *(partition, end, what),
            extra={"event": "consumer_truncated"},
        )
        self._partitions.seek(holding, end)

    def _out_of_range(self, holding: HeldPartition, error: KafkaError) -> None:
        """Handles an offset that is not in the log: retention or truncation removed it, or the topic was recreated.

        librdkafka always runs with ``auto.offset.reset=error``, because its own reset would move the position silently.
        If the position moved back, as it would for a recreated topic, records would seem to be delivered twice.
        """
        position = self._partitions.position(holding)
        where = f"offset {position} of {holding.partition} is not in the log"
        if self._reset is OffsetReset.ERROR and position != NO_OFFSET:
            failure = NoOffset(f"{where} ({error.str()}); auto_offset_reset is 'error': seek() to a valid offset")
            self._partitions.fail(holding, failure)
            return
        try:
            begin, end = self._client.bounds_of(holding.partition)
        except KafkaException as failed:
            log.warning("could not reset partition=%s: %s; trying again", holding.partition, failed)
            self._partitions.try_again(holding.partition)  # the next fetch fails in the same way
            return
        if position == NO_OFFSET:  # its beginning, whatever the reset: retention has moved that since it was listed
            log.info("fetching partition=%s anew from its beginning, which is now %d", holding.partition, begin)
            self._partitions.try_again(holding.partition)
            return
        if position < begin:  # retention has overtaken the group; what still exists is read
            log.warning(
                "continuing at the start of the log partition=%s offset=%d: %d unread records are gone",
                *(holding.partition, begin, begin - position),
                extra={"event": "consumer_overtaken"},
            )
            self._partitions.seek(holding, begin)
            return
        if self._reset is OffsetReset.LATEST and begin <= position <= end:
            log.warning("continuing partition=%s offset=%d: %s, but it is now", holding.partition, position, where)
            self._partitions.seek(holding, position)
            return
        log.warning(
            "reset partition=%s to=%s reason=%r",
            *(holding.partition, self._reset.value, f"{where} ({error.str()}), which ends at {end}"),
            extra={"event": "consumer_reset_offset"},
        )
        self._partitions.seek(holding, end if self._reset is OffsetReset.LATEST else NO_OFFSET)


_IDLE_SLICE_S = 0.1
"""The longest wait, in seconds, while there is nothing to fetch. It is short because Python handles signals only
between waits."""

DEFAULT_MAX_RECORDS = 500
"""Kafka's ``max.poll.records``."""

_BATCH = 320
"""The number of messages to take from librdkafka at once, unless the application requests more than
``DEFAULT_MAX_RECORDS``. The resulting records stay below the 700 new objects after which Python's garbage collector
runs."""


class Fetcher:
    """Fetches the records of one stream. ``hands_out_until`` returns the (monotonic) time until which the consumer is
    certainly a member. ``troubles`` receives the errors that keep a partition from being read. ``renew`` calls
    :meth:`use` with another client. ``check`` raises the
    errors that the application must see (closed, failed). ``wake`` wakes the connector. ``record`` creates a record
    from a message, and ``message`` is the type of the messages.
    """

    def __init__(
        self,
        number: int,
        *,
        reset: OffsetReset,
        hands_out_until: Callable[[], float],
        check: Callable[[], None],
        wake: Callable[[], None],
        troubles: Callable[[TopicPartition, KafkaError], None] = lambda _partition, _error: None,
        renew: Callable[[Fetcher], None] = lambda _fetcher: None,
        record: Callable[[Message], Record[Any, Any]] = Record,
        message: type[Any] = Message,
    ) -> None:
        self.number = number
        self.reader: threading.Thread | None = None
        """The thread that last consumed."""
        self._hands_out_until = hands_out_until
        self._check = check
        self._wake = wake
        self._record = record
        # C code calls these methods for each message of a batch, several times faster than Python code could.
        self._error, self._topic, self._partition = message.error, message.topic, message.partition
        self._changed = threading.Event()
        self.partitions = StreamPartitions(wake=wake, changed=self._fetch_what_is_live)
        self._lock = self.partitions.lock
        self._live = self.partitions.live
        self._failing = self.partitions.failing
        self._runs = self.partitions.runs
        self._client = AssignedClient(self.partitions.fetch_points, troubles, lambda: renew(self))
        self._errors = FetchErrors(self.partitions, self._client, reset, troubles)
        self._to_handle: list[tuple[HeldPartition, KafkaError]] = []
        self._until = 0.0
        """The (monotonic) time until which the run being iterated over may be handed out."""
        self._taker: threading.Thread | None = None
        self.stopped = False

    # --- called by the application -----------------------------------------------------------------------------------

    def take(self, limit: int, timeout_s: float) -> list[Record[Any, Any]]:
        """Returns up to ``limit`` records, or an empty list if no record arrived within ``timeout_s``. All records
        handed out earlier count as consumed.
        """
        return [*map(self._record, self._take(limit, timeout_s, limit if limit > DEFAULT_MAX_RECORDS else _BATCH))]

    def take_fetched(self, limit: int) -> list[Record[Any, Any]]:
        """Like :meth:`take`, but returns only records that :meth:`fetch_ahead` has already fetched."""
        self._enter()
        try:
            self._check()
            return [*map(self._record, self._hand_out(limit))]
        finally:
            self._taker = None

    def take_messages(self, limit: int, timeout_s: float) -> list[Message]:
        """Like :meth:`take`, but returns the messages themselves."""
        return self._take(limit, timeout_s, max(limit, DEFAULT_MAX_RECORDS))

    def _take(self, limit: int, timeout_s: float, at_once: int) -> list[Message]:
        """Takes at most ``at_once`` messages from librdkafka at a time."""
        self._enter()
        try:
            deadline = time.monotonic() + timeout_s
            while True:
                self._check()
                messages = self._hand_out(limit)
                if messages or self.stopped:
                    return messages
                remaining = deadline - time.monotonic()
                self._fill(max(0.0, remaining), at_once)
                if remaining <= 0:
                    self._check()
                    return self._hand_out(limit)
        finally:
            self._taker = None

    def take_one(self, timeout_s: float) -> Record[Any, Any] | None:
        """Like :meth:`take`, but returns a single record, or ``None``."""
        record = self.next_of_run()
        if record is not None:
            return record
        self._enter()
        try:
            deadline = time.monotonic() + timeout_s
            while True:
                self._check()
                record = self._hand_out_one()
                remaining = deadline - time.monotonic()
                if record is not None or remaining <= 0 or self.stopped:
                    return record
                self._fill(remaining, _BATCH)
        finally:
            self._taker = None

    def next_of_run(self) -> Record[Any, Any] | None:
        """Returns the next record of the current run; the previous one then counts as consumed. Returns ``None`` if the
        run is exhausted or checks are due; the caller must then call :meth:`take_one`."""
        iterated = self._runs.iterated
        if iterated is None or self._failing or _monotonic() >= self._until:
            return None
        message = next(iterated.rest, None)
        return None if message is None else self._record(message)

    def iterate(self, take_next: Callable[[], Record[Any, Any]]) -> Iterator[Record[Any, Any]]:
        """Yields records as they arrive, until the consumer is closed or stopped. Inlines :meth:`next_of_run` to save a
        call for every record, and calls ``take_next`` when the run is exhausted."""
        runs, failing, as_record = self._runs, self._failing, self._record
        while True:
            iterated = runs.iterated
            if iterated is not None:
                rest = iterated.rest
                while _monotonic() < self._until and not failing:
                    message = next(rest, None)
                    if message is None:
                        break
                    yield as_record(message)
            try:
                record = take_next()
            except ConsumerClosed:
                return
            yield record

    @property
    def records(self) -> int:
        with self._lock:
            return self._runs.records

    def in_hand_of_others(self, closing: threading.Thread) -> bool:
        """Returns whether a living thread other than ``closing`` has records in hand. If so, the connector is woken
        once that thread has finished them."""
        reader = self.reader
        if reader is None or reader is closing or not reader.is_alive():
            return False
        return self.partitions.in_hand()

    def _enter(self) -> None:
        """Counts the previous records as consumed when the application requests more."""
        me = threading.current_thread()
        with self._lock:
            if self._taker not in {None, me}:
                raise ConsumerError(
                    f"stream {self.number} is being read by another thread; read each stream from one thread,"
                    " and give the consumer as many streams as there are threads"
                )
            self._taker = self.reader = me
        self.partitions.lost_uncommitted = False
        self.partitions.mark_consumed()

    # --- handing out -------------------------------------------------------------------------------------------------

    def _hand_out(self, limit: int) -> list[Message]:
        if not self._may_hand_out():
            return []
        with self._lock:
            return self._runs.take(limit)

    def _hand_out_one(self) -> Record[Any, Any] | None:
        if not self._may_hand_out():
            return None
        until = self._hands_out_until()
        with self._lock:
            self._until = until
            if self.stopped:  # a signal handler may have called stop() just now
                self._until = 0.0
            message = self._runs.take_one()
        return None if message is None else self._record(message)

    def _may_hand_out(self) -> bool:
        """Returns whether records may be handed out now. Raises the failure of a partition that cannot continue."""
        if self.stopped:
            return False
        if self._failing:
            self.partitions.raise_failing()
        if not self._runs:
            return False
        if self._hands_out_until() <= time.monotonic():
            self._wake()
            return False
        return True

    # --- fetching ----------------------------------------------------------------------------------------------------

    @property
    def has_fetched(self) -> bool:
        """Whether there may be something to hand out."""
        return bool(self._runs)

    def fetch_ahead(self, until: Callable[[], bool]) -> None:
        """Waits until records have been fetched, there is an error to report to the application, the consumer is
        stopped, or ``until`` returns true. Call this on a thread other than the one that takes the records."""
        while not (self._runs or self._failing or self.stopped or until()):
            self._fill(1.0, _BATCH)

    def _fill(self, timeout_s: float, at_once: int) -> None:
        """Waits for records, and stores them as runs."""
        self._changed.clear()
        if self._runs.queued or not self._live or not self._client.fetch(timeout_s, at_once, self._take_in):
            self._changed.wait(min(timeout_s, _IDLE_SLICE_S))
        while self._to_handle:
            self._errors.handle(*self._to_handle.pop())

    def _take_in(self, messages: list[Any], serials: Mapping[Key, int]) -> None:
        """Stores the records of partitions that have not been stopped, paused or moved by a seek since the fetch, and
        drops all others. If the partition of a dropped record is still held, it has a new serial, so the client fetches
        the record again.
        """
        with self._lock:
            ends: dict[HeldPartition, int] = {}
            if any(map(self._error, messages)):
                messages, ends = self._without_errors(messages, serials)
            for topic, of_topic in groupby(messages, self._topic):
                for partition, of_partition in groupby(of_topic, self._partition):
                    key = (topic, partition)
                    holding = self._live.get(key)
                    if holding is not None and serials.get(key) == holding.serial:
                        self._runs.add(Run(holding, list(of_partition)))
            for holding, end in ends.items():
                self._runs.reached(holding, end)

    def _without_errors(
        self, messages: list[Any], serials: Mapping[Key, int]
    ) -> tuple[list[Any], dict[HeldPartition, int]]:
        """Notes the errors among the messages. Returns the records, and the ends of partitions that were reached: the
        last stable offset, or with ``read_uncommitted`` the high watermark. The caller holds the lock."""
        records = []
        ends: dict[HeldPartition, int] = {}
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
                continue
            key = (message.topic(), message.partition())
            holding = self._live.get(key)
            # librdkafka tells only once why it cannot read a partition, perhaps just before a seek.
            if holding is not None and (serials.get(key) == holding.serial or error.code() in UNREADABLE):
                if error.code() == KafkaError._PARTITION_EOF:
                    ends[holding] = message.offset()
                else:
                    self._to_handle.append((holding, error))
            elif message.topic() is None and not is_about_no_group(error):
                log.warning("librdkafka reported error=%s: %s", error.name(), error.str())
        return records, ends

    def _fetch_what_is_live(self) -> None:
        self._client.changed()
        self._changed.set()

    # --- the client, and closing -------------------------------------------------------------------------------------

    def try_again(self, partition: TopicPartition) -> None:
        """Fetches a partition anew that could not be read."""
        self._client.learn(partition.topic)
        self.partitions.try_again(partition)

    def use(self, client: KafkaConsumer) -> None:
        """Fetches with ``client`` from now on."""
        self._client.use(client)
        self._changed.set()

    def stop(self) -> None:
        """Stops returning records. A signal handler may call this, so it does not take a lock."""
        self.stopped = True
        self._until = 0.0

    def close(self) -> None:
        """Stops fetching and closes the client."""
        self.partitions.close()
        self._client.close()
        self._changed.set()

    def forked(self) -> None:
        """Stops this copy, which belongs to a forked process, from returning records. ``check`` raises the error."""
        self._runs.forked()


class Stream(Generic[K, V]):
    """The records of the stream's partitions. Iteration ends when the consumer is closed or stopped."""

    def __init__(self, fetcher: Fetcher, check_process: Callable[[], None]) -> None:
        self._fetcher = fetcher
        self._check_process = check_process

    @property
    def number(self) -> int:
        """The stream's index in the consumer."""
        return self._fetcher.number

    def poll(self, timeout_s: float = 1.0, **other: Never) -> Record[K, V] | None:
        """Returns the next record, or ``None`` if no record arrived within ``timeout_s`` seconds.

        The previous record counts as consumed from then on. Raises the errors that :class:`~kafka_coord.Consumer`
        lists.
        """
        if other:
            check_call("poll", other)
        record = self._fetcher.next_of_run()
        if record is not None:
            return record
        self._check_process()
        return self._fetcher.take_one(timeout_s)

    def consume(
        self, max_records: int = DEFAULT_MAX_RECORDS, timeout_s: float = 1.0, **other: Never
    ) -> list[Record[K, V]]:
        """Returns up to ``max_records`` records as soon as any is available, or an empty list after ``timeout_s``
        seconds. All previous records count as consumed from then on.
        """
        check_call("consume", other)
        self._check_process()
        return self._fetcher.take(max_records, timeout_s)

    def consume_messages(self, max_messages: int = DEFAULT_MAX_RECORDS, timeout_s: float = 1.0) -> list[Message]:
        """Like :meth:`consume`, but returns confluent-kafka's messages. They are never errors."""
        self._check_process()
        return self._fetcher.take_messages(max_messages, timeout_s)

    def assignment(self) -> frozenset[TopicPartition]:
        """Returns the partitions that this stream fetches now."""
        return frozenset(holding.partition for holding in self._fetcher.partitions.holdings() if not holding.stopping)

    def __iter__(self) -> Iterator[Record[K, V]]:
        return self._fetcher.iterate(self._take)

    def forked(self) -> None:
        """Stops this copy, which belongs to a forked process, from returning records. Its next call raises an error."""
        self._fetcher.forked()

    def __next__(self) -> Record[K, V]:
        try:
            return self._fetcher.next_of_run() or self._take()
        except ConsumerClosed:
            raise StopIteration from None

    def _take(self) -> Record[K, V]:
        self._check_process()
        while True:
            record = self._fetcher.take_one(1.0)
            if record is not None:
                return record
            if self._fetcher.stopped:
                raise ConsumerClosed("the consumer was stopped")
