"""Claims, loads and writes one partition of the groups log for a single term, which the brokers fence.

The term's number is greater than every number in the log (:class:`LogLoad`) and in the partition's znode
(:mod:`kafka_coord.grouplog.trees`). It determines the term's producer id and epoch; the ids are higher than any that
transaction coordinators issue. Every leader of the partition rejects a write whose epoch is older than the newest one
it knows for the producer id. So, once a newer claim is in the log:

- every acknowledged write from an older term precedes that claim, so the newer term loads it;
- the broker rejects every later write from an older term.

A producer id lasts for 2^15 - 1 terms. Its last epoch is reserved: every term under a later id first writes a batch
with that epoch for each id from that of the newest term in the log on, so that the brokers also reject these.

An append has one of three outcomes besides success: it was not sent (:class:`~kafka_coord.kafka.connection.NotSent`),
it was refused (:class:`AppendRefused`), or nobody knows (:class:`TermEnded`: the term ends, because the log may hold
the records or not). It succeeds only if the broker reports no error *and* the expected offset. If no byte of it was
sent, the connection is opened again, ZooKeeper is asked whether the term goes on, and the append is sent then. If the
broker refused it with one of a few codes (:data:`REFUSALS`), the log certainly does not hold it: only that append
fails, and its sequence numbers are used again. Any other result ends the term. Nothing is retried then, and waiting
clients get NOT_COORDINATOR.

A successful append also proves that no newer term had claimed the partition when the append was sent. For
:data:`PROOF_S` seconds from then on, reads may be served from memory: a newer term does not change anything for that
long after its claim. A refusal proves nothing, because a broker checks sizes and replicas before it compares epochs.
While appends are refused, a check of the partition's znode takes their place (ADR 38).
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from kafka_coord.classic_groups.errors import named
from kafka_coord.classic_groups.machine import GroupLimits
from kafka_coord.classic_groups.sessions import AttentiveClock
from kafka_coord.errors import BrokerError, KafkaCoordError, MalformedValue, StoreError, TreeRefused, UnknownVersion
from kafka_coord.grouplog.records import Claim, claim_record, is_claim, keep_alive_record, read_claim
from kafka_coord.kafka.cluster import PartitionReader
from kafka_coord.kafka.connection import RIGHTS, BrokerConnection, LeadsNoMore, NotSent, RightMissing, failure, only
from kafka_coord.model import names
from kafka_coord.wire.batches import Batch, LogRecord, encode_batch
from kafka_coord.wire.messages import BadMessage, message
from kafka_coord.zk.root import ClusterRecord

log = logging.getLogger(__name__)

MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, NOT_ENOUGH_REPLICAS = 10, 18, 19
TOO_LARGE = frozenset({MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE})
REFUSALS = TOO_LARGE | {NOT_ENOUGH_REPLICAS} | RIGHTS
"""All codes after which the broker has certainly appended nothing: it checks rights before it looks at the records
(``KafkaApis.handleProduceRequest``), the number of replicas before it appends (``Partition.appendRecordsToLeader``),
and the sizes before it assigns offsets for good (``UnifiedLog.append``). Keep this list closed: after any other code
the records may be in the log, and a later batch with the same sequence numbers would be answered as a duplicate."""
TOPIC = "__kafka_coord_groups"
PARTITIONS = names.LOG_PARTITIONS
_FIRST_PRODUCER_ID = 1 << 62
_IDS_A_PARTITION = 1 << 40
_EPOCH_BITS = 15
_LAST_EPOCH = (1 << _EPOCH_BITS) - 1
_MOST_TERMS = _IDS_A_PARTITION << _EPOCH_BITS
_MOST_FENCED = 1_000
"""How many producer ids a claim fences at most."""
_PRODUCE = 3
"""The version of the Produce request. Every broker from 0.11 to 3.9 supports it."""
_BATCH_BYTES = 512 << 10
"""The maximum size of a batch in bytes, unless a single append is larger."""
_RECORD_BYTES = 32
"""An upper bound on the size of a record without its key and value, in bytes."""
BATCH_OVERHEAD_BYTES = 128
"""An upper bound on the size of a batch without its records, in bytes."""
KEEP_ALIVE_S = 3600.0
PROOF_S = 0.25
"""How long reads may be served from memory, in seconds since the last successful append was sent. See
:meth:`LogTerm.prove`."""
_CLOCKS_DIFFER_BY = 1.05
"""A newer term waits longer than :data:`PROOF_S` by this factor, because its clock may be faster."""
_FENCED = 47
"""The code of INVALID_PRODUCER_EPOCH."""
_CHECK_S = 2.0
"""How long ZooKeeper may take to check the term."""


class TermEnded(KafkaCoordError):
    """This instance must no longer write to the partition, and it is unknown whether its last append was written."""


class NotProven(KafkaCoordError):
    """Neither the log nor ZooKeeper can prove now that the term goes on. The term has not ended."""


class AppendRefused(KafkaCoordError):
    """The records were refused, and nothing was appended. The term goes on. ``code`` is the broker's error."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code

    @property
    def is_too_large(self) -> bool:
        return self.code in TOO_LARGE

    @property
    def lacks_right(self) -> bool:
        """Whether the instance lacks a right."""
        return self.code in RIGHTS


_REOPEN_S, _REOPEN_AGAIN_S = 2.0, 0.1
"""For how long, and how often, to try to reach the broker again before the term ends."""

Checking = Callable[[], Awaitable[bool]]
"""Checks whether the partition's znode is still as it was claimed, ordered with all writes to ZooKeeper. Raises
:class:`StoreError` if that cannot be found out."""
Apply = Callable[[], None]


def producer_of(partition: int, term: int) -> tuple[int, int]:
    """Returns the (producer id, epoch) of a term. A later term of the same partition has a greater id, or the same id
    and a greater epoch."""
    return _FIRST_PRODUCER_ID + partition * _IDS_A_PARTITION + (term >> _EPOCH_BITS), term & _LAST_EPOCH


def is_reserved(term: int) -> bool:
    """Returns whether the term's epoch would be the last epoch of a producer id, which no term may use."""
    return term & _LAST_EPOCH == _LAST_EPOCH


def next_term(newest: int) -> int:
    """Returns the number of the term after ``newest``. Raises :class:`BrokerError` if there is none."""
    term = newest + 1 + is_reserved(newest + 1)
    if term >= _MOST_TERMS:
        raise BrokerError(f"there is no term after {newest}: no producer id is left for it")
    return term


def term_of(partition: int, batch: Batch) -> int | None:
    """Returns the term that wrote a batch, or ``None`` if the batch was not written by a term."""
    number = batch.producer_id - _FIRST_PRODUCER_ID - partition * _IDS_A_PARTITION
    if not 0 <= number < _IDS_A_PARTITION or batch.producer_epoch < 0:
        return None
    return number << _EPOCH_BITS | batch.producer_epoch


class Claimed(NamedTuple):
    """A term as ZooKeeper knows it: its number, the version of the partition's znode after the claim, the znode's
    czxid, and the newest epoch of the coordinator."""

    term: int
    version: int
    czxid: int
    epoch: int = 0


class LogLoad:
    """Reads a partition in parts: first what is in it, which tells the number of the next term and whether this tree
    may claim it, and after the claim what lies between. ``newest`` is the newest term that was found, or -1, and
    ``claim`` a claim of the newest generation, if there is one."""

    def __init__(self, broker: BrokerConnection, partition: int, topic: str = TOPIC) -> None:
        self.partition = partition
        self._reader = PartitionReader(broker, partition, topic)
        self._next: int | None = None
        self.newest = -1
        self.claim: Claim | None = None

    async def up_to(self, end: int | None = None) -> AsyncIterator[tuple[int, Sequence[LogRecord]]]:
        """Yields the records that were not read yet and lie before ``end`` (by default, the log's present end), batch
        by batch, each with the term that wrote it, except those that an older term wrote after a newer claim. Raises
        :class:`BrokerError`, and :class:`TreeRefused` for a claim in another format."""
        first = await self._reader.first_offset() if self._next is None else self._next
        end = self._next = await self._reader.end_offset() if end is None else end
        async for batch in self._reader.batches(first, end):
            term = term_of(self.partition, batch)
            if batch.is_control or term is None or self.passes_over(term):
                continue
            records = [record for record in batch.records if first <= record.offset < end]
            if records and is_claim(records[0]):
                self._note(records[0])
            yield term, records

    def passes_over(self, term: int) -> bool:
        """Notes a batch's term. Returns whether an older term wrote it after a newer claim, so that it does not
        count."""
        if term < self.newest:
            return True
        self.newest = term
        return False

    def _note(self, record: LogRecord) -> None:
        try:
            claim = read_claim(record)
        except UnknownVersion as error:
            raise TreeRefused(
                f"partition {self.partition} of {TOPIC} has another format ({error.reason}), so nothing was done;"
                " use the release that wrote it"
            ) from None
        except MalformedValue as error:
            log.warning("ignored an unreadable claim partition=%d reason=%s", self.partition, error)
            return
        if self.claim is None or claim.generation >= self.claim.generation:
            self.claim = claim

    def check(self, own: ClusterRecord, term: int | None = None) -> None:
        """Raises :class:`TreeRefused` unless the tree ``own`` may claim the partition, and :class:`TermEnded` if the
        log contains a newer term than its ``term``."""
        if term is not None and self.newest > term:
            raise TermEnded(f"partition {self.partition}: the log contains term {self.newest}, newer than {term}")
        found = self.claim
        if found is not None and found.refuses(own):
            raise TreeRefused(
                f"the groups log belongs to {found.of_tree}; this instance has {own.name}, which may not claim it: give"
                " it the --zookeeper of that tree, or, if that tree is lost, run kafka-coord init --replace"
                f" {found.tree} here",
                newer=found.of_tree if found.generation > own.generation else "",
            )


@dataclass(slots=True, eq=False)
class _Append:
    """Records to append. Once they are durable, ``apply`` is called (in log order), and then ``done`` is set. They are
    not written if the append before them in the same request, which they ``follow``, was refused."""

    records: Sequence[LogRecord]
    apply: Apply
    done: asyncio.Future[None]
    size: int
    follows: _Append | None = None
    refused: AppendRefused | None = None

    def refuse(self, why: AppendRefused) -> None:
        self.refused = why
        if not self.done.done():
            self.done.set_exception(why)


@dataclass(slots=True)
class TermFigures:
    """The statistics of a term. ``append_s`` is the total duration of its appends. ``load_s`` is the time from its
    claim until it could serve groups."""

    appends: int = 0
    records: int = 0
    append_s: float = 0.0
    loaded_records: int = 0
    load_s: float = 0.0


class LogTerm:
    """The right to write to one partition, from :meth:`claim` until the term ends. ``on_end`` is then called once, with
    the reason and whether the end was planned."""

    def __init__(
        self,
        broker: BrokerConnection,
        partition: int,
        claimed: Claimed,
        instance: str,
        tree: ClusterRecord,
        now_ms: Callable[[], int],
        on_end: Callable[[str, bool], None],
        check: Checking,
        on_outcome: Callable[[int], None] = lambda _code: None,
        topic: str = TOPIC,
        most_bytes: Callable[[], int] = lambda: GroupLimits().append_bytes,
    ) -> None:
        """``claimed`` is what ZooKeeper knows of the term, in this ``tree``. ``on_outcome`` is called with the code of
        each append that succeeded (0) or was refused. ``most_bytes`` returns the maximum size of one append."""
        self.partition, self.term, self._topic = partition, claimed.term, topic
        self.znode_version = claimed.version
        """The version of the partition's znode, which fences this term's writes in ZooKeeper."""
        self._claimed, self._tree = claimed, tree
        self._reader = PartitionReader(broker, partition, topic)
        self._broker, self._instance, self._now_ms, self._on_end = broker, instance, now_ms, on_end
        self._check, self._on_outcome, self._most_bytes = check, on_outcome, most_bytes
        self._checking = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._sequence = 0
        self._next_offset = -1
        self._queue: deque[_Append] = deque()
        self._under_way: list[_Append] = []
        self._news: asyncio.Future[None] | None = None
        """The future that the writer awaits while it has nothing to write."""
        self._writing: asyncio.Task[None] | None = None
        self._keeping_alive: asyncio.TimerHandle | None = None
        self._batch_bytes = _BATCH_BYTES
        self._appended_at = self.proven_at = -math.inf
        """When the last successful append was sent, and the last request that proved the term."""
        self.is_refused = False
        """Whether the broker currently refuses everything that is appended, whatever its size."""
        self.is_unproven = False
        """Whether the term waits for a proof because appends are refused, or could not get one. Meanwhile, clients get
        no answers from memory."""
        self._clock = AttentiveClock(self._loop.time())
        self.ended = ""
        self.figures = TermFigures()

    async def claim(self, newest: int = -1) -> int:
        """Writes the claim and returns its offset. ``newest`` is the newest term that is known to be in the log. Raises
        :class:`BrokerError` if the broker does not lead the partition, refuses the claim (:class:`RightMissing` if it
        denies the right to write) or does not respond, and :class:`TermEnded` if another instance has claimed this
        term."""
        try:
            return await self._claim(newest)
        except AppendRefused as error:
            if error.lacks_right:
                raise RightMissing(f"partition {self.partition}: cannot write the claim", error.code) from None
            raise BrokerError(str(error)) from None

    async def _claim(self, newest: int) -> int:
        own = self.term >> _EPOCH_BITS
        first = max(0, own - 1 if newest < 0 else min(newest >> _EPOCH_BITS, own - 1))
        if own - first > _MOST_FENCED:
            raise BrokerError(
                f"partition {self.partition}: term {self.term} is too far from term {newest}, the newest in the log:"
                f" {own - first} producer ids would have to be fenced. Correct its znode, whose number or version it is"
            )
        for skipped in range(first, own):
            last = skipped << _EPOCH_BITS | _LAST_EPOCH
            await self._produce([keep_alive_record()], producer_of(self.partition, last), 0)
        tree = self._tree
        nonce = secrets.token_hex(8)
        claim = Claim(self.term, self._instance, nonce, tree.tree, tree.generation, self._claimed.epoch)
        written = claim_record(claim)
        offset = await self._produce_next([written])
        async for batch in self._reader.batches(offset, offset + 1):
            if [(record.key, record.value) for record in batch.records] == [(written.key, written.value)]:
                self._next_offset = offset + 1
                return offset
        raise TermEnded(f"partition {self.partition}: term {self.term} was claimed by another instance")

    async def outlast(self, claim_answered_at: float) -> None:
        """Waits until no older term may still serve reads from memory, because such reads would miss this term's
        changes."""
        delay_s = claim_answered_at + PROOF_S * _CLOCKS_DIFFER_BY - self._loop.time()
        if delay_s > 0:
            await asyncio.sleep(delay_s)

    def now(self) -> float:
        """Returns the time on the term's clock, which runs only while the term serves its groups: not while the event
        loop is stalled, and not while the term cannot be proven. Call this method at least every
        :data:`~kafka_coord.classic_groups.sessions.LONGEST_STEP_S` seconds, as longer pauses count as stalls."""
        now = self._loop.time()
        self._clock.step_began(now, leads=not self.is_unproven)
        return self._clock.at(now)

    def monotonic(self, at: float) -> float:
        """Returns the time of the event loop at which :meth:`now` will return ``at``, unless the clock stands still
        before then."""
        return self._clock.monotonic(at)

    def serve(self) -> None:
        """Starts the clock, and starts writing queued appends to the log."""
        self._clock = AttentiveClock(self._loop.time())
        self._writing = asyncio.create_task(self._write(), name=f"groups-log-{self.partition}")
        self._keeping_alive = self._loop.call_later(KEEP_ALIVE_S, self._keep_alive)

    def append(self, records: Sequence[LogRecord], apply: Apply = lambda: None) -> asyncio.Future[None]:
        """Queues records for the log, in the order of the calls. The returned future is done when the records are
        durable and ``apply`` has been called.

        The call raises :class:`TermEnded` if the term has already ended. If the term ends later, the future raises it,
        and it is unknown whether the records were written. If the broker refuses the records, the future raises
        :class:`AppendRefused`. The call raises it if the records do not fit in one batch."""
        return self.append_in_order([(records, apply)])[0]

    def append_in_order(self, parts: Sequence[tuple[Sequence[LogRecord], Apply]]) -> list[asyncio.Future[None]]:
        """Queues several appends, as :meth:`append` does, without any other append between them. If one is refused,
        the ones after it are not written, and raise the same :class:`AppendRefused`."""
        if self.ended:
            raise TermEnded(self.ended)
        before: _Append | None = None
        queued = []
        for records, apply in parts:
            size = sum([len(record.key or b"") + len(record.value or b"") + _RECORD_BYTES for record in records])
            if size > self._most_bytes():
                raise AppendRefused(
                    f"partition {self.partition}: {len(records)} records of {size} bytes do not fit in a batch",
                    MESSAGE_TOO_LARGE,
                )
            before = _Append(records, apply, self._loop.create_future(), size, before)
            queued.append(before)
        self._queue.extend(queued)
        self._wake()
        return [one.done for one in queued]

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _keep_alive(self) -> None:
        """Makes the writer append a keep-alive if it has not written anything for :data:`KEEP_ALIVE_S` seconds."""
        left_s = self._appended_at + KEEP_ALIVE_S - self._loop.time()
        if left_s <= 0:
            self._wake()
        self._keeping_alive = self._loop.call_later(left_s if left_s > 0 else KEEP_ALIVE_S, self._keep_alive)

    async def prove(self) -> None:
        """Waits until it is certain that no newer term had changed anything by the time of the call. Returns
        immediately if the last proof was sent less than :data:`PROOF_S` seconds ago. Raises :class:`TermEnded`, and
        :class:`NotProven` if appends are refused and ZooKeeper does not answer."""
        if self.ended:
            raise TermEnded(self.ended)
        called_at = self._loop.time()
        if called_at < self.proven_at + PROOF_S:
            return
        try:
            await self.append([keep_alive_record()])
        except AppendRefused as refused:
            self.is_unproven = True
            async with self._checking:  # one check serves everyone who called before it was sent
                if self.proven_at < called_at and not await self._check_znode():
                    raise NotProven(f"{refused}, and ZooKeeper does not answer") from None
                self.is_unproven = False
            if self.ended:
                raise TermEnded(self.ended) from None

    async def _check_znode(self) -> bool:
        """Proves the term by its znode. Returns false if ZooKeeper does not answer. Ends the term and raises
        :class:`TermEnded` if the znode has changed."""
        sent_at = self._loop.time()
        try:
            async with asyncio.timeout(_CHECK_S):
                is_current = await self._check()
        except (StoreError, TimeoutError) as error:
            log.info("cannot check a term partition=%d term=%d reason=%s", self.partition, self.term, error)
            return False
        if not is_current:
            self.end("another instance has claimed the partition in ZooKeeper")
            raise TermEnded(self.ended)
        self.proven_at = max(self.proven_at, sent_at)
        return True

    def end(self, reason: str, *, planned: bool = False) -> None:
        """Ends the term. ``planned`` says that its partition has moved, or that this instance gives it up."""
        if self.ended:
            return
        self.ended = f"partition {self.partition}: term {self.term} has ended: {reason}"
        if self._keeping_alive is not None:
            self._keeping_alive.cancel()
        waiting = [*self._under_way, *self._queue]
        self._under_way = []
        self._queue.clear()
        for append in waiting:
            if not append.done.done():
                append.done.set_exception(TermEnded(self.ended))
        if self._writing is not None and self._writing is not asyncio.current_task():
            self._writing.cancel()
        self._on_end(reason, planned)

    async def _write(self) -> None:
        """Writes the queued records in batches, with one request in flight at a time."""
        try:
            while True:
                if not self._queue:
                    self._news = self._loop.create_future()
                    await self._news
                    self._news = None
                self._take_batch()
                if self._under_way:
                    await self._write_out(self._under_way)
                else:
                    with suppress(AppendRefused):
                        await self._append_batch([keep_alive_record()])
                self._under_way = []
        except (BrokerError, TermEnded, BadMessage) as error:
            self.end(str(error), planned=isinstance(error, LeadsNoMore))
        except Exception as error:
            log.exception("cannot write to the groups log partition=%d term=%d", self.partition, self.term)
            self.end(f"{type(error).__name__}: {error}")

    def _take_batch(self) -> None:
        size, most = 0, min(self._batch_bytes, self._most_bytes())
        while self._queue and (not self._under_way or size + self._queue[0].size <= most):
            self._under_way.append(self._queue.popleft())
            size += self._under_way[-1].size

    async def _write_out(self, appends: list[_Append]) -> None:
        """Writes appends in one batch. If it is too large, writes each half on its own, and so on, so that only the
        append that is too large is refused."""
        for one in appends:
            if one.follows is not None and one.follows.refused is not None:
                one.refuse(one.follows.refused)
        appends = [one for one in appends if one.refused is None]
        if not appends:
            return
        try:
            await self._append_batch([record for one in appends for record in one.records])
        except AppendRefused as refused:
            if not refused.is_too_large or len(appends) == 1:
                for one in appends:
                    one.refuse(refused)
                return
            self._batch_bytes = sum(one.size for one in appends) // 2
            half = len(appends) // 2
            await self._write_out(appends[:half])
            await self._write_out(appends[half:])
            return
        for one in appends:
            one.apply()
            if not one.done.done():
                one.done.set_result(None)

    async def _append_batch(self, records: Sequence[LogRecord]) -> None:
        sent_at = self._loop.time()
        try:
            offset = await self._produce_next(records)
        except AppendRefused as refused:
            self.is_refused = self.is_refused or not refused.is_too_large
            self._on_outcome(refused.code)
            raise
        if offset != self._next_offset:
            raise TermEnded(f"the batch was written at offset {offset}, not at {self._next_offset}")
        if self.ended:
            raise TermEnded(self.ended)
        self._next_offset += len(records)
        self._appended_at = self.proven_at = sent_at
        self.is_refused = self.is_unproven = False
        self.figures.appends += 1
        self.figures.records += len(records)
        self.figures.append_s += self._loop.time() - sent_at
        self._on_outcome(0)

    async def _produce_next(self, records: Sequence[LogRecord]) -> int:
        """Sends the next batch. Its sequence numbers count as used only if it was appended: after a refusal the next
        batch gets them, and after anything else there is no next batch."""
        offset = await self._produce(records, producer_of(self.partition, self.term), self._sequence)
        self._sequence = (self._sequence + len(records)) & 0x7FFFFFFF
        return offset

    async def _produce(self, records: Sequence[LogRecord], producer: tuple[int, int], sequence: int) -> int:
        """Sends a batch and returns the offset of its first record. Raises :class:`AppendRefused` if the broker has
        certainly not appended it, and :class:`BrokerError` if that is unknown."""
        form = message("ProduceRequest")
        batch = encode_batch(
            records, now_ms=self._now_ms(), producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence
        )
        data = form.struct("PartitionProduceData")(index=self.partition, records=batch)
        topic = form.struct("TopicProduceData")(name=self._topic, partition_data=(data,))
        answer = await self._send(form(acks=-1, timeout_ms=15_000, topic_data=(topic,)))
        result = only(only(answer.responses, "topics").partition_responses, "partitions")
        if result.error_code == _FENCED:
            raise BrokerError(
                f"partition {self.partition}: the log contains a newer term than {self.term}: another instance has"
                " claimed the partition"
            )
        if result.error_code:
            what, code = f"partition {self.partition}: the broker refused the write", result.error_code
            raise AppendRefused(f"{what}: {named(code)}", code) if code in REFUSALS else failure(what, code)
        return int(result.base_offset)

    async def _send(self, request: Any) -> Any:
        """Sends a produce request and returns the response. While the request cannot be sent because the connection is
        closed, opens it again, and ends the term if another instance has claimed the partition meanwhile. ZooKeeper
        need not answer: a newer claim in the log would fence the append itself."""
        give_up_at = self._loop.time() + _REOPEN_S
        while True:
            try:
                if not self._broker.is_open:
                    await self._broker.open()
                    if self._next_offset >= 0:
                        await self._check_znode()
                return await self._broker.ask("Produce", _PRODUCE, request, reopens=False)
            except NotSent:
                if self._broker.closed or self._loop.time() >= give_up_at:
                    raise
                await asyncio.sleep(_REOPEN_AGAIN_S)
