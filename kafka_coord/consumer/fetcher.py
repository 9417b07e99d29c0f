"""One stream of a consumer: what it holds, what librdkafka has brought, what the application has in hand.

Two threads meet here. The *application's* takes records; the *connector's* begins and releases partitions. Neither
ever waits for the other: the one blocking call of librdkafka is made outside every lock, and what it brings back is
checked against what is held by then. So a partition can be stopped while the application is blocked in ``poll``.

``_lock`` guards the state and is held for microseconds; ``_assigning`` is held around a change of what librdkafka
fetches, so that such changes happen in the order of the decisions they follow from. It is taken before ``_lock``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as Assigned

from kafka_coord.consumer.holding import Holding
from kafka_coord.consumer.record import Record
from kafka_coord.consumer.reset import OffsetReset
from kafka_coord.errors import BrokerError, ConsumerError, NoOffset
from kafka_coord.model import NO_OFFSET, TopicPartition

log = logging.getLogger(__name__)

_SLICE_S = 0.1
"""How long one call of librdkafka blocks at most: Python sees signals only in between."""

_BATCH = 500
"""How many records are taken from librdkafka at once (Kafka's ``max.poll.records``)."""

_METADATA_TIMEOUT_S = 0.5

_UNKNOWN_TO_BROKER = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)
_FORBIDDEN = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)


class Fetcher:
    """The fetcher behind one stream.

    ``may_hand_out`` says whether the session still is proven to be ours; ``check`` raises what the application has to
    know (closed, failed); ``wake`` wakes the connector.
    """

    def __init__(
        self,
        number: int,
        *,
        reset: OffsetReset,
        may_hand_out: Callable[[], bool],
        check: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        self.number = number
        self._reset_policy = reset
        self._may_hand_out = may_hand_out
        self._check = check
        self._wake = wake
        self._lock = threading.Lock()
        self._assigning = threading.RLock()
        self._client: KafkaConsumer | None = None
        self._changed = threading.Event()
        self._held: dict[tuple[str, int], Holding] = {}
        self._live: dict[tuple[str, int], Holding] = {}
        self._buffer: deque[Any] = deque()
        self._in_hand: set[Holding] = set()
        self._orphans_in_hand = False
        self._settling_wakes = False
        self._call = 0
        self._calling: KafkaConsumer | None = None
        self._left_in_call: dict[tuple[str, int], int] = {}
        self._failing: set[Holding] = set()
        self._to_learn: set[str] = set()
        self._known: dict[str, int] = {}
        self._learn_at = 0.0
        self._learn_delay_s = 0.0
        self._taker: int | None = None
        self.last_taker: int | None = None
        self._closed = False
        self.records = 0
        self.lost_uncommitted = False
        """What the application was handed and did not commit belongs to an incarnation that is lost."""

    # --- the application's thread ------------------------------------------------------------------------------------

    def take(self, limit: int, timeout_s: float) -> list[Record]:
        """At least one record and at most ``limit``; none if none came within ``timeout_s``.

        Coming here says that all records handed out before are done with.
        """
        self._enter()
        try:
            self.lost_uncommitted = False
            self.settle()
            deadline = time.monotonic() + timeout_s
            while True:
                self._check()
                records = self._hand_out(limit)
                if records:
                    return records
                remaining = deadline - time.monotonic()
                self._fill(min(max(0.0, remaining), _SLICE_S), limit)
                if remaining <= 0:
                    self._check()
                    return self._hand_out(limit)
        finally:
            self._taker = None

    def take_one(self, timeout_s: float) -> Record | None:
        """As :meth:`take` for one record."""
        if self._buffer:  # the hot path of iteration
            self._check()
            self.settle()
            records = self._hand_out(1)
            if records:
                return records[0]
        records = self.take(1, timeout_s)
        return records[0] if records else None

    def _enter(self) -> None:
        me = threading.get_ident()
        with self._lock:
            if self._taker not in {None, me}:
                raise ConsumerError(
                    f"stream {self.number} is being read by another thread: read each stream from one thread,"
                    " and give the consumer as many streams as there are threads"
                )
            self._taker = self.last_taker = me

    def settle(self) -> None:
        """The application came back: what it had in hand counts as consumed."""
        if not self._in_hand and not self._orphans_in_hand:
            return
        with self._lock:
            for holding in self._in_hand:
                holding.settle()
            self._nothing_in_hand()

    def _nothing_in_hand(self) -> None:
        self._in_hand.clear()
        if self._settling_wakes or self._orphans_in_hand:
            self._settling_wakes = self._orphans_in_hand = False
            self._wake()

    def _hand_out(self, limit: int) -> list[Record]:
        if self._failing:
            self._raise_failing()
        if not self._buffer:
            return []
        if not self._may_hand_out():
            self._wake()
            return []
        records: list[Record] = []
        with self._lock:
            buffer, live, in_hand = self._buffer, self._live, self._in_hand
            while buffer and len(records) < limit:
                message = buffer.popleft()
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                holding = live.get((topic, partition))
                # Not live: stopped, paused or lost meanwhile. Below the position: brought by a call that began before.
                if holding is None or offset < holding.position:
                    continue
                holding.position = offset + 1
                in_hand.add(holding)
                records.append(Record(topic, partition, offset, message))
            self.records += len(records)
        return records

    def _raise_failing(self) -> None:
        with self._lock:
            failures = [holding.failure for holding in self._failing if holding.failure is not None]
        if failures:
            raise failures[0]

    def _fill(self, timeout_s: float, limit: int) -> None:
        """One call of librdkafka: what it brings goes to the buffer, less what is not wanted any more."""
        client = self._client
        with self._lock:
            ready = client is not None and not self._buffer and not self._closed and bool(self._live)
            if ready:
                self._call += 1
                self._calling = client
                self._left_in_call.clear()
            else:
                self._changed.clear()
        if client is None or not ready:
            self._changed.wait(timeout_s)
            return
        messages: list[Any] = []
        try:
            first = client.poll(timeout_s)
            if first is not None:
                messages = [first, *client.consume(max(limit, _BATCH) - 1, 0)]
            elif self._to_learn and time.monotonic() >= self._learn_at:
                self._learn(client)
        finally:
            errors, rewind = self._take_in(messages)
        for topic, partition, error in errors:
            self._on_error(topic, partition, error)
        for holding in rewind:
            self._fetch_again(holding)

    def _take_in(self, messages: list[Any]) -> tuple[list[tuple[str, int, KafkaError]], list[Holding]]:
        errors = []
        rewind: set[Holding] = set()
        with self._lock:
            self._calling = None
            for message in messages:
                error = message.error()
                if error is not None:
                    errors.append((message.topic(), message.partition(), error))
                    continue
                holding = self._live.get((message.topic(), message.partition()))
                if holding is None:
                    continue
                if holding.discard_call == self._call:
                    rewind.add(holding)
                    continue
                self._buffer.append(message)
        return errors, list(rewind)

    # --- errors ------------------------------------------------------------------------------------------------------

    def _on_error(self, topic: str | None, partition: int, error: KafkaError) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            return
        if topic is None:
            log.warning("heard from librdkafka error=%s: %s", error.name(), error.str())
            return
        with self._lock:
            holding = self._held.get((topic, partition))
        if holding is None:
            return
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._out_of_range(holding, error)
        elif code in _FORBIDDEN:
            raise BrokerError(f"may not read {holding.partition}: {error.str()}")
        else:
            log.warning("could not fetch partition=%s error=%s: %s", holding.partition, error.name(), error.str())
            if code in _UNKNOWN_TO_BROKER:
                self._to_learn.add(topic)

    def _out_of_range(self, holding: Holding, error: KafkaError) -> None:
        """The offset is not in the log: retention or truncation took it, or the topic was made anew.

        librdkafka runs with ``auto.offset.reset=error`` always. Its own reset would move the position without a word,
        and one that moves back (a topic made anew) could not be told from records brought twice.
        """
        where = f"offset {holding.position} of {holding.partition} is not in the log ({error.str()})"
        if self._reset_policy is OffsetReset.ERROR:
            self.fail(holding, NoOffset(f"{where}; auto_offset_reset is 'error': seek() to where to go on"))
            return
        try:
            offset = self._reset_target(holding.partition)
        except KafkaException as failure:
            log.warning("could not reset partition=%s: %s; trying again", holding.partition, failure)
            self._fetch_again(holding)  # fails the same way, and so comes back here
            return
        log.warning("reset partition=%s to=%s reason=%r", holding.partition, self._reset_policy.value, where)
        self._move(holding, offset)

    def _reset_target(self, partition: TopicPartition) -> int:
        if self._reset_policy is OffsetReset.EARLIEST or self._client is None:
            return NO_OFFSET
        _low, high = self._client.get_watermark_offsets(Assigned(*partition), timeout=5.0)
        return int(high)

    def fail(self, holding: Holding, failure: NoOffset) -> None:
        """This partition cannot go on by itself; the application hears of it at every call until it seeks."""
        with self._assigning:
            with self._lock:
                if self._held.get(holding.partition) is not holding:
                    return
                holding.failure = failure
                self._failing.add(holding)
                self._live.pop(holding.partition, None)
            self._unassign([holding])
        self._changed.set()

    def _learn(self, client: KafkaConsumer) -> None:
        """Asks for metadata of topics with partitions librdkafka may not know of yet.

        By itself it does so for a partition added to a known topic only every 10 s (librdkafka #2917).
        """
        self._learn_delay_s = min(5.0, 2 * self._learn_delay_s + 0.05)
        self._learn_at = time.monotonic() + self._learn_delay_s
        for topic in list(self._to_learn):
            try:
                found = client.list_topics(topic, timeout=_METADATA_TIMEOUT_S).topics.get(topic)
            except KafkaException as error:
                log.debug("asked for metadata in vain topic=%s: %s", topic, error)
                return
            known = max(found.partitions, default=-1) if found is not None and found.error is None else -1
            with self._lock:
                self._known[topic] = known
                if all(partition <= known for name, partition in self._held if name == topic):
                    self._to_learn.discard(topic)

    # --- the application's wishes ------------------------------------------------------------------------------------

    def holding(self, partition: tuple[str, int]) -> Holding | None:
        return self._held.get(partition)

    def seek(self, holding: Holding, offset: int) -> None:
        """Goes on from ``offset`` (``NO_OFFSET``: the beginning of the log)."""
        self._move(holding, offset)

    def _move(self, holding: Holding, offset: int) -> None:
        with self._assigning:
            with self._lock:
                if self._held.get(holding.partition) is not holding:
                    return
                holding.move_to(offset)
                holding.failure = None
                self._failing.discard(holding)
                self._purge({holding.partition})
                if self._calling is not None:
                    holding.discard_call = self._call
                self._unlive_or_live(holding)
            self._unassign([holding])
            self._assign([holding])
        self._changed.set()

    def pause(self, holding: Holding, *, paused: bool) -> None:
        """Hands out nothing of it, or goes on where it was."""
        with self._assigning:
            with self._lock:
                holding.paused = paused
                self._unlive_or_live(holding)
                if paused:
                    self._purge({holding.partition})
            if holding.wanted:
                self._assign([holding])
            else:
                self._unassign([holding])
        self._changed.set()

    def _unlive_or_live(self, holding: Holding) -> None:
        if holding.wanted and self._held.get(holding.partition) is holding:
            self._live[holding.partition] = holding
        else:
            self._live.pop(holding.partition, None)

    def _purge(self, partitions: set[tuple[str, int]] | set[TopicPartition]) -> None:
        if self._buffer:
            self._buffer = deque(m for m in self._buffer if (m.topic(), m.partition()) not in partitions)

    def _fetch_again(self, holding: Holding) -> None:
        with self._assigning:
            if self._held.get(holding.partition) is holding and holding.fetching:
                self._unassign([holding])
                self._assign([holding])

    # --- the connector's thread --------------------------------------------------------------------------------------

    def hold(self, holdings: Iterable[Holding]) -> None:
        """Takes partitions over without fetching them yet."""
        with self._lock:
            for holding in holdings:
                self._held[holding.partition] = holding
                if holding.failure is not None:
                    self._failing.add(holding)

    def begin(self, holdings: Iterable[Holding]) -> None:
        """Fetches them from their positions."""
        wanted = list(holdings)
        with self._assigning:
            with self._lock:
                for holding in wanted:
                    holding.begun = True
                    left_at = self._left_in_call.get(holding.partition)
                    if self._calling is not None and left_at is not None and holding.position < left_at:
                        holding.discard_call = self._call
                    if holding.partition.partition > self._known.get(holding.partition.topic, -1):
                        self._to_learn.add(holding.partition.topic)
                        self._learn_at = self._learn_delay_s = 0.0
                    self._unlive_or_live(holding)
            self._assign([holding for holding in wanted if holding.wanted])
        self._changed.set()

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        """From now on hands out nothing of these."""
        with self._lock:
            for partition in partitions:
                holding = self._held.get(partition)
                if holding is not None:
                    holding.stopping = True
                    self._failing.discard(holding)
                    self._live.pop(partition, None)

    def in_hand(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether the application has a record of these; if so, the connector is woken when it no longer has."""
        with self._lock:
            held = self._held
            if any(held.get(partition) in self._in_hand for partition in partitions if partition in held):
                self._settling_wakes = True
                return True
            return False

    def release(self, partitions: Iterable[TopicPartition]) -> list[Holding]:
        """Lets stopped partitions go: no longer fetched, what is queued of them dropped."""
        with self._assigning:
            with self._lock:
                released = [holding for p in partitions if (holding := self._held.pop(p, None)) is not None]
                for holding in released:
                    self._live.pop(holding.partition, None)
                    self._in_hand.discard(holding)
                    self._failing.discard(holding)
                    if self._calling is not None:
                        self._left_in_call[holding.partition] = holding.position
                self._purge({holding.partition for holding in released})
            self._unassign(released)
        return released

    def abandon(self) -> bool:
        """Lets everything go at once (the lost-connection procedure); whether the application had anything in hand."""
        with self._assigning:
            with self._lock:
                had = bool(self._in_hand)
                self.lost_uncommitted = self.lost_uncommitted or any(
                    holding.position > max(holding.committed, 0) for holding in self._held.values()
                )
                self._orphans_in_hand = self._orphans_in_hand or had
                lost = list(self._held.values())
                for holding in lost:
                    if self._calling is not None:
                        self._left_in_call[holding.partition] = holding.position
                self._held.clear()
                self._live.clear()
                self._buffer.clear()
                self._in_hand.clear()
                self._failing.clear()
            self._unassign(lost)
        return had

    @property
    def orphans_in_hand(self) -> bool:
        """Whether the application still works on records of an incarnation that is lost."""
        return self._orphans_in_hand

    def holdings(self) -> list[Holding]:
        with self._lock:
            return list(self._held.values())

    def uncommitted(self, *, auto_commit: bool) -> dict[TopicPartition, int]:
        """What there is to commit of what is held."""
        with self._lock:
            return offsets_of(self._held.values(), auto_commit=auto_commit)

    def snapshot(self, *, with_in_hand: bool) -> dict[TopicPartition, int]:
        """For a commit of all that was consumed: counts what is in hand as consumed if told so."""
        with self._lock:
            if with_in_hand:
                for holding in self._in_hand:
                    holding.settle()
                self._nothing_in_hand()
            for holding in self._held.values():
                holding.asked = holding.consumed
            return offsets_of(self._held.values(), auto_commit=False)

    def ask(self, holding: Holding, offset: int) -> None:
        """The application commits ``offset`` of this partition by itself."""
        with self._lock:
            holding.asked = offset
            holding.consumed = max(holding.consumed, offset)
            if holding.consumed == holding.position and holding in self._in_hand:
                self._in_hand.discard(holding)
                if not self._in_hand:
                    self._nothing_in_hand()
                elif self._settling_wakes:
                    self._wake()

    def stored(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These offsets are in ZooKeeper now."""
        with self._lock:
            for partition, offset in offsets.items():
                holding = self._held.get(partition)
                if holding is not None:
                    holding.stored(offset)

    # --- librdkafka --------------------------------------------------------------------------------------------------

    def use(self, client: KafkaConsumer) -> None:
        """Fetches with this client from now on (the first one, or one that knows other brokers)."""
        with self._assigning:
            old, self._client = self._client, client
            with self._lock:
                held = list(self._held.values())
                self._known.clear()
                self._to_learn.update(topic for topic, _ in self._held)
            for holding in held:
                holding.fetching = False
            self._assign([holding for holding in held if holding.wanted])
        self._changed.set()
        if old is not None:
            self._close_client(old)

    @property
    def has_client(self) -> bool:
        return self._client is not None

    def _assign(self, holdings: Iterable[Holding]) -> None:
        wanted = [holding for holding in holdings if holding.wanted and not holding.fetching]
        if not wanted or self._client is None or self._closed:
            return
        self._client.incremental_assign([Assigned(*h.partition, h.fetch_from) for h in wanted])
        for holding in wanted:
            holding.fetching = True

    def _unassign(self, holdings: Iterable[Holding]) -> None:
        fetching = [holding for holding in holdings if holding.fetching]
        if not fetching or self._client is None or self._closed:
            return
        self._client.incremental_unassign([Assigned(*holding.partition) for holding in fetching])
        for holding in fetching:
            holding.fetching = False

    def close(self) -> None:
        """Closes the client, once the application's thread is out of it."""
        with self._assigning:
            with self._lock:
                self._closed = True
                client, self._client = self._client, None
                self._live.clear()
            self._changed.set()
            if client is not None:
                self._close_client(client)

    def _close_client(self, client: KafkaConsumer) -> None:
        # Closing a client another thread is inside of would crash the process; its calls are short.
        deadline = time.monotonic() + _SLICE_S + 2 * _METADATA_TIMEOUT_S + 5.0
        while self._calling is client and time.monotonic() < deadline:
            time.sleep(0.005)
        if self._calling is not client:
            client.close()


def offsets_of(holdings: Iterable[Holding], *, auto_commit: bool) -> dict[TopicPartition, int]:
    """What there is to commit of these."""
    found = ((holding.partition, holding.to_commit(auto_commit=auto_commit)) for holding in holdings)
    return {partition: offset for partition, offset in found if offset is not None}
