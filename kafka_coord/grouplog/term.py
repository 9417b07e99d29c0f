"""One term of one partition of the groups log: claimed, loaded, written, and fenced by the brokers.

The term's number is the version of the znode ``/consumers/kafka/<n>`` after the instance has set it. From it come a
producer id and an epoch that no transaction coordinator issues; a partition's leader refuses an older epoch of a
producer id it knows, wherever it is led. So, once a newer claim is in the log:

- what an older term was acknowledged lies before that claim, and is loaded by the newer term;
- what an older term writes after it is refused.

An append counts only if the broker reports no error *and* the offset that is expected. Everything else ends the term:
nothing is retried, and whoever waits is told that the coordinator has moved.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from kafka_coord.errors import BrokerError
from kafka_coord.grouplog.broker import BrokerConnection
from kafka_coord.grouplog.errors import TermEnded
from kafka_coord.grouplog.reader import PartitionReader
from kafka_coord.grouplog.records import Claim, claim_record, keep_alive_record, read_record
from kafka_coord.wire.batches import Batch, LogRecord, encode_batch
from kafka_coord.wire.errors import BadMessage
from kafka_coord.wire.messages import message

log = logging.getLogger(__name__)

TOPIC = "__kafka_coord_groups"
PARTITIONS = 50
_FIRST_PRODUCER_ID = 1 << 62
_IDS_A_PARTITION = 1 << 40
_EPOCH_BITS = 15
_PRODUCE = 3
"""A version that every broker from 0.11 to 3.9 speaks."""
_BATCH_BYTES = 512 << 10
"""So much is written in one request, while more waits."""
KEEP_ALIVE_S = 3600.0


def producer_of(partition: int, term: int) -> tuple[int, int]:
    """(producer id, epoch) of a term. A greater term of a partition has a greater epoch, or another, greater id."""
    return _FIRST_PRODUCER_ID + partition * _IDS_A_PARTITION + (term >> _EPOCH_BITS), term & ((1 << _EPOCH_BITS) - 1)


def term_of(partition: int, batch: Batch) -> int | None:
    """The term that wrote a batch; ``None`` for one that no term has."""
    number = batch.producer_id - _FIRST_PRODUCER_ID - partition * _IDS_A_PARTITION
    if not 0 <= number < _IDS_A_PARTITION or batch.producer_epoch < 0:
        return None
    return number << _EPOCH_BITS | batch.producer_epoch


@dataclass(slots=True, eq=False)
class _Append:
    records: Sequence[LogRecord]
    done: asyncio.Future[None]
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = sum(len(record.key or b"") + len(record.value or b"") for record in self.records)


class LogTerm:
    """The right to write one partition, from :meth:`claim` until it ends. ``on_end`` hears why, once."""

    def __init__(
        self,
        broker: BrokerConnection,
        partition: int,
        term: int,
        instance: str,
        now_ms: Callable[[], int],
        on_end: Callable[[str], None],
        topic: str = TOPIC,
    ) -> None:
        self.partition, self.term, self._topic = partition, term, topic
        self._reader = PartitionReader(broker, partition, topic)
        self._broker, self._instance, self._now_ms, self._on_end = broker, instance, now_ms, on_end
        self._producer_id, self._epoch = producer_of(partition, term)
        self._sequence = 0
        self._next_offset = -1
        self._queue: list[_Append] = []
        self._news = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self.ended = ""

    async def claim(self) -> int:
        """Writes the claim; its offset. Raises :class:`BrokerError` where the broker does not lead the partition or
        does not answer, :class:`TermEnded` where a newer term was faster."""
        claim = Claim(self.term, self._instance, secrets.token_hex(8))
        offset = await self._produce([claim_record(claim)])
        async for batch in self._reader.batches(offset, offset + 1):
            if [read_record(record) for record in batch.records] == [claim]:
                self._next_offset = offset + 1
                return offset
        raise TermEnded(f"partition {self.partition}: term {self.term} was claimed by another instance")

    async def load(self, claimed_at: int) -> AsyncIterator[LogRecord]:
        """All records before the claim, but those of terms that a claim before them had ended."""
        newest = -1
        async for batch in self._reader.batches(await self._reader.first_offset(), claimed_at):
            term = term_of(self.partition, batch)
            if batch.is_control or term is None or term < newest:
                continue
            newest = max(newest, term)
            for record in batch.records:
                if record.offset < claimed_at:
                    yield record

    def serve(self) -> None:
        """Appends are written from now on."""
        self._writing = asyncio.create_task(self._write(), name=f"groups-log-{self.partition}")

    async def append(self, records: Sequence[LogRecord]) -> None:
        """Returns when they are durable. Raises :class:`TermEnded`: whether they were written is unknown then."""
        if self.ended:
            raise TermEnded(self.ended)
        one = _Append(records, asyncio.get_running_loop().create_future())
        self._queue.append(one)
        self._news.set()
        await one.done

    def end(self, reason: str) -> None:
        if self.ended:
            return
        self.ended = f"partition {self.partition}: term {self.term} has ended: {reason}"
        waiting, self._queue = self._queue, []
        for one in waiting:
            if not one.done.done():
                one.done.set_exception(TermEnded(self.ended))
        if self._writing is not None and self._writing is not asyncio.current_task():
            self._writing.cancel()
        self._on_end(reason)

    async def _write(self) -> None:
        """Whatever waits goes into the next batch; one request is under way at a time."""
        batch: list[_Append] = []
        try:
            while True:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        await self._news.wait()
                except TimeoutError:
                    await self._append_batch([keep_alive_record()])
                    continue
                size = 0
                batch = []
                while self._queue and (not batch or size + self._queue[0].size <= _BATCH_BYTES):
                    batch.append(self._queue.pop(0))
                    size += batch[-1].size
                if not self._queue:
                    self._news.clear()
                await self._append_batch([record for one in batch for record in one.records])
                for one in batch:
                    if not one.done.done():
                        one.done.set_result(None)
        except (BrokerError, TermEnded, BadMessage) as error:
            self._queue = batch + self._queue
            self.end(str(error))

    async def _append_batch(self, records: Sequence[LogRecord]) -> None:
        offset = await self._produce(records)
        if offset != self._next_offset:
            raise TermEnded(f"written at offset {offset} where {self._next_offset} was expected")
        self._next_offset += len(records)

    async def _produce(self, records: Sequence[LogRecord]) -> int:
        form = message("ProduceRequest")
        batch = encode_batch(
            records,
            now_ms=self._now_ms(),
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=self._sequence,
        )
        data = form.struct("PartitionProduceData")(index=self.partition, records=batch)
        topic = form.struct("TopicProduceData")(name=self._topic, partition_data=(data,))
        self._sequence = (self._sequence + len(records)) & 0x7FFFFFFF
        answer = await self._broker.ask("Produce", _PRODUCE, form(acks=-1, timeout_ms=15_000, topic_data=(topic,)))
        result = answer.responses[0].partition_responses[0]
        if result.error_code:
            raise BrokerError(f"partition {self.partition}: the broker refuses the write: error {result.error_code}")
        return int(result.base_offset)
