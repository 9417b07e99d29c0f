"""A partition of the groups log, as its brokers keep it. It is fenced by producers, led by one broker at a time, and
compacted.

Acknowledged batches are below the high watermark and stay. Other batches may be cut off when the leadership moves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from kafka_coord.grouplog.term import term_of
from kafka_coord.model.offsets import EARLIEST
from kafka_coord.wire.batches import Batch, LogRecord
from tests.simulation.groups.loop import World

NOT_LEADER, NOT_ENOUGH_REPLICAS, NOT_ENOUGH_AFTER_APPEND, OUT_OF_ORDER, FENCED = 6, 19, 20, 45, 47
TIMED_OUT, TOO_LARGE, DENIED, STORAGE = 7, 10, 29, 56
_REMEMBERED = 5
"""The number of batches of each producer that a broker remembers to recognise a repeated one."""


@dataclass(slots=True)
class Producer:
    epoch: int
    next_sequence: int = 0
    recent: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    """(first sequence, count, base offset) of each."""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch on its way."""

    records: tuple[LogRecord, ...]
    producer_id: int
    epoch: int
    sequence: int


class SimulatedPartition:
    """``written`` is called with every appended batch, and ``cut`` with the offset from which batches were cut off."""

    def __init__(self, world: World, partition: int, brokers: Sequence[int]) -> None:
        self.world, self.partition, self.brokers = world, partition, tuple(brokers)
        self.leader = self.brokers[0]
        self.leader_since = 0
        self.first, self.leo, self.high_watermark = 0, 0, 0
        self.all: list[Batch] = []
        """All written batches. Compaction does not remove them here."""
        self.served: list[Batch] = []
        self.producers: dict[int, Producer] = {}
        self.lacks_replicas = False
        self.most_records = 1 << 30
        """Larger batches are refused."""
        self.denies = False
        """Whether the instances may not write."""
        self.unclear: int | None = None
        """The code that tells nothing about whether a batch was appended, while the brokers answer with it."""
        self._waiting: list[tuple[int, Callable[[Any], None]]] = []
        self.written: Callable[[Batch], None] = lambda _batch: None
        self.cut: Callable[[int], None] = lambda _offset: None

    # --- requests ----------------------------------------------------------------------------------------------------

    def produce(self, broker: int, sent: Sent, reply: Callable[[Any], None]) -> None:
        if broker != self.leader:
            reply(_produced(NOT_LEADER))
            return
        if self.denies:
            reply(_produced(DENIED))
            return
        if self.lacks_replicas and self.world.rng.random() < 0.7:
            reply(_produced(NOT_ENOUGH_REPLICAS))
            return
        count = len(sent.records)
        if count > self.most_records:
            reply(_produced(TOO_LARGE))
            return
        if self.unclear is not None and self.world.rng.random() < 0.3:
            reply(_produced(self.unclear))
            return
        known = self.producers.get(sent.producer_id)
        if known is not None:
            if sent.epoch < known.epoch:
                reply(_produced(FENCED))
                return
            if sent.epoch == known.epoch:
                for sequence, many, base in known.recent:
                    if (sequence, many) == (sent.sequence, count):
                        reply(_produced(0, base))
                        return
            expected = known.next_sequence if sent.epoch == known.epoch else 0
            if sent.sequence != expected:
                reply(_produced(OUT_OF_ORDER))
                return
        base = self._append(sent)
        if self.lacks_replicas or (self.unclear is not None and self.world.rng.random() < 0.4):
            reply(_produced(NOT_ENOUGH_AFTER_APPEND if self.lacks_replicas else self.unclear or TIMED_OUT))
            since, end = self.leader_since, self.leo
            self.world.after(self.world.rng.uniform(0.001, 0.02), lambda: self._replicated(since, end))
            return
        self._waiting.append((base + count, lambda answer: reply(answer if answer else _produced(0, base))))
        since, end = self.leader_since, self.leo
        self.world.after(self.world.rng.uniform(0.001, 0.02), lambda: self._replicated(since, end))

    def _append(self, sent: Sent) -> int:
        base = self.leo
        placed = tuple(one._replace(offset=base + at) for at, one in enumerate(sent.records))
        self.leo += len(placed)
        batch = Batch(base, self.leo, sent.producer_id, sent.epoch, sent.sequence, False, placed)
        self.all.append(batch)
        self.served.append(batch)
        self._note(batch)
        self.written(batch)
        return base

    def _note(self, batch: Batch) -> None:
        known = self.producers.get(batch.producer_id)
        if known is None or known.epoch != batch.producer_epoch:
            known = self.producers[batch.producer_id] = Producer(batch.producer_epoch)
        count = batch.end - batch.base_offset
        known.next_sequence = (batch.base_sequence + count) & 0x7FFFFFFF
        known.recent.append((batch.base_sequence, count, batch.base_offset))
        known.at = self.world.now

    def _replicated(self, since: int, end: int) -> None:
        if since != self.leader_since or end > self.leo or self.lacks_replicas:
            return
        self.high_watermark = max(self.high_watermark, end)
        ready = [one for one in self._waiting if one[0] <= self.high_watermark]
        self._waiting = [one for one in self._waiting if one[0] > self.high_watermark]
        for _, reply in ready:
            reply(None)

    def offset(self, broker: int, timestamp: int) -> Any:
        error = 0 if broker == self.leader else NOT_LEADER
        part = SimpleNamespace(error_code=error, offset=self.first if timestamp == EARLIEST else self.high_watermark)
        return SimpleNamespace(topics=[SimpleNamespace(partitions=[part])])

    def fetch(self, broker: int, offset: int) -> Any:
        error = 0 if broker == self.leader else NOT_LEADER
        found = [b for b in self.served if b.end > offset and b.end <= self.high_watermark][
            : self.world.rng.randint(2, 20)
        ]
        part = SimpleNamespace(error_code=error, records=found, high_watermark=self.high_watermark)
        return SimpleNamespace(responses=[SimpleNamespace(partitions=[part])])

    # --- other events ------------------------------------------------------------------------------------------------

    def move(self, broker: int) -> None:
        """Makes another broker the leader. It has some, all or none of the unacknowledged batches, as a prefix."""
        ends = [self.high_watermark, *(batch.end for batch in self.all if batch.end > self.high_watermark)]
        self.leo = self.world.rng.choice(ends)
        self.all = [batch for batch in self.all if batch.end <= self.leo]
        self.served = [batch for batch in self.served if batch.end <= self.leo]
        self.cut(self.leo)
        self.leader, self.high_watermark = broker, self.leo
        self.leader_since += 1
        self.producers = {}
        for batch in self.all:
            self._note(batch)
        waiting, self._waiting = self._waiting, []
        for _, reply in waiting:
            reply(_produced(NOT_LEADER))

    def have_replicas(self, enough: bool) -> None:
        self.lacks_replicas = not enough
        if enough:
            self._replicated(self.leader_since, self.leo)

    def forget_producers(self) -> None:
        """Forgets producers that have not written for long, as after ``producer.id.expiration.ms``."""
        self.producers = {key: one for key, one in self.producers.items() if one.at > self.world.now - 1.5}

    def compact(self) -> None:
        """Removes records that a newer record below the high watermark replaces: ``LogCleanerManager.cleanableOffsets``
        ends there in Kafka 3.9. The last batch of each producer stays, even if it is empty."""
        stays = [batch for batch in self.served if batch.end <= self.high_watermark]
        newest = {record.key: record.offset for batch in stays for record in batch.records}
        last = {batch.producer_id: batch.base_offset for batch in self.served}
        kept = []
        for batch in self.served:
            if batch.end > self.high_watermark:
                kept.append(batch)
                continue
            records = tuple(one for one in batch.records if newest[one.key] == one.offset)
            if records or last[batch.producer_id] == batch.base_offset:
                kept.append(replace(batch, records=records))
        self.served = kept

    def counted(self) -> list[Batch]:
        """Returns the records that a loader applies."""
        newest, found = -1, []
        for batch in self.all:
            term = term_of(self.partition, batch)
            if term is not None and term >= newest:
                newest = term
                found.append(batch)
        return found


def _produced(error: int, base: int = -1) -> Any:
    part = SimpleNamespace(error_code=error, base_offset=base)
    return SimpleNamespace(responses=[SimpleNamespace(partition_responses=[part])])
