"""The query as a member of its group: registered, obeying the channel, planning micro-batches. On Spark's driver."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.consumer.connector import Connector
from kafka_coord.consumer.running import ConnectorThread
from kafka_coord.consumer.settings import Membership, membership
from kafka_coord.errors import BrokerError, ConsumerClosed, NoOffset, SettingsError, StoreUnavailable
from kafka_coord.model import NO_OFFSET, PartitionSet, TopicPartition
from kafka_coord.monitor.lag import OffsetReader, bootstrap_servers
from kafka_coord.spark.connecting import open_zookeeper
from kafka_coord.spark.holdings import BatchHoldings
from kafka_coord.spark.options import OnDataLoss, SourceOptions, StartingOffsets
from kafka_coord.spark.planned import PlannedBatch
from kafka_coord.spark.ranges import NO_RANGES, OffsetRange, OffsetRanges
from kafka_coord.zk import layout

log = logging.getLogger(__name__)

_CLOCK_TOLERANCE_MS = 2_000
"""How far ZooKeeper's clock and the driver's may be apart, for telling what was written after a batch was planned."""
_CLOSE_S = 10.0
_WARN_EVERY_S = 10.0
_RETRY_S = 0.2
_SAID_WITHIN_S = 2.0
"""How long a micro-batch waits for the group to hold where a partition begins that it knew nothing of."""
_BEYOND_END_S = 3.0
"""For how long an offset must have been beyond the end of its log to be taken for lost: just after a broker was elected
to lead a partition, it may not know yet how far the one before it had told consumers to read (KIP-207)."""


_BEGINS_S = 10.0
"""For how long the beginnings of the logs are good enough: retention moves them slowly, and who fetches notices."""
_IDLE_S = 0.05
"""How long after a look that found nothing the next one is. Spark's default trigger asks again after 10 ms."""


@dataclass(frozen=True, slots=True)
class _Unsaid:
    """Read and done, by the checkpoint, in a micro-batch planned at ``planned_ms``; the group may not know it."""

    ranges: tuple[OffsetRange, ...]
    planned_ms: int

    @property
    def end(self) -> int:
        return self.ranges[-1].end

    def holds(self, offset: int) -> bool:
        return any(one.start <= offset < one.end for one in self.ranges)


class QueryMember:
    """Registers at once; :meth:`close` leaves. All but the connector's own thread is one thread's, Spark's planner."""

    def __init__(self, options: SourceOptions, holdings: type[BatchHoldings] = BatchHoldings) -> None:
        self._options = options
        self._membership: Membership = membership(
            group=options.group,
            topics=options.topics or None,
            include=options.pattern,
            consumer_id=options.consumer_id,
            capacity=options.capacity,
            rejoin_grace_ms=options.rejoin_grace_ms,
        )
        self._wakeup = threading.Event()
        self._store = open_zookeeper(options.zookeeper)
        self._channel = ConsumerChannel(self._store, options.group, options.consumer_id)
        self.holdings = holdings(self._wakeup.set)
        self._connector = Connector(
            self._store,
            self._channel,
            self.holdings,
            registration_value=partial(self._membership.registration_value, self._store),
            wake=self._wakeup.set,
            auto_commit_interval_s=0.2,
        )
        self._offsets: OffsetReader | None = None
        self._bootstrap = ""
        self._ends: dict[TopicPartition, int] = {}
        self._begins: dict[TopicPartition, int] = {}
        self._begins_until = 0.0
        self._idle_since = float("-inf")
        self._unsaid: dict[TopicPartition, list[_Unsaid]] = {}
        """In the order they were done."""
        self._beyond: dict[TopicPartition, float] = {}
        """Since when (monotonic) their offsets have been beyond the end of the log."""
        self._warned = -_WARN_EVERY_S
        self._thread = ConnectorThread(
            self._connector,
            self._store,
            self._channel,
            self._wakeup,
            consumer=options.consumer_id,
            at_end=self._let_go,
        )
        self._thread.start()

    # --- planning ----------------------------------------------------------------------------------------------------

    def plan(self, most: int, upto: Mapping[TopicPartition, int] | None = None) -> OffsetRanges:
        """What the next micro-batch reads: of the partitions that are this query's now, at most ``most`` offsets in
        all, fairly shared, and none past ``upto`` (partitions not in it: none). Empty when there is nothing new, and
        while no broker tells where the partitions end, or ZooKeeper what it has to be asked (told in the log: they come
        back, and of topics that are deleted the coordinator takes the partitions away).

        Raises what ended the membership for good, and :class:`NoOffset` where records are gone that were to be read
        and the options say to fail.
        """
        self._check()
        self._pause_if_idle()
        try:
            self._say_what_is_done()
            wanted = self.holdings.wanted()
            if upto is not None:
                wanted = {tp: position for tp, position in wanted.items() if tp in upto}
            if not wanted:
                self._ends = {}
            if not wanted or most < 1:
                return NO_RANGES
            ends = self._ends = self.latest(PartitionSet.of(wanted))
            positions = self._positions(wanted, ends)
        except (BrokerError, StoreUnavailable) as error:
            self._warn(f"reads nothing for now: {error}")
            self._idle_since = time.monotonic()
            return NO_RANGES
        room = {
            tp: max(0, min(ends[tp], upto.get(tp, 0) if upto is not None else ends[tp]) - position)
            for tp, position in positions.items()
            if tp in ends
        }
        shares = fair_shares(room, most)
        planned = {tp: [(positions[tp], positions[tp] + share)] for tp, share in shares.items() if share}
        if not planned or not self._connector.may_hand_out():
            self._idle_since = time.monotonic()
            return NO_RANGES
        return self.holdings.take(OffsetRanges(planned))

    def plan_all(self, most: int, upto: Mapping[TopicPartition, int]) -> OffsetRanges:
        """As :meth:`plan`, for a run that ends when nothing is planned: that a broker or ZooKeeper is away, or the
        membership just lost, is waited out for the options' ``waitMs`` while something of ``upto`` is left."""
        deadline = time.monotonic() + self._options.wait_ms / 1000
        while True:
            if upto and (self._connector.registration is None or not self.holdings.wanted()):
                self.await_partitions()
            registration = self._connector.registration
            ranges = self.plan(most, upto)
            wanted = self.holdings.wanted()
            left = [tp for tp, end in upto.items() if wanted.get(tp, end) < end]
            # Of a membership lost meanwhile nothing is held, which does not mean that nothing is left.
            lost = registration is not self._connector.registration or not self._connector.may_hand_out()
            if ranges or not (left or (lost and upto)):
                return ranges
            if time.monotonic() >= deadline:
                log.warning(
                    "ends this run before all is read that was there at its beginning: %s",
                    ", ".join(map(str, left or upto)),
                )
                return ranges

    def ends_now(self) -> dict[TopicPartition, int]:
        """Where what is this query's ends. Waits for brokers as :meth:`plan_all` does, then raises
        :class:`BrokerError` where none answers."""
        deadline = time.monotonic() + self._options.wait_ms / 1000
        while True:
            self.await_partitions()
            wanted = self.holdings.wanted()  # none: not given any in time, or lost again just now
            try:
                ends = self.latest(PartitionSet.of(wanted)) if wanted else {}
                if (wanted and ends.keys() >= wanted.keys()) or time.monotonic() >= deadline:
                    return ends
            except (BrokerError, StoreUnavailable) as error:
                if time.monotonic() >= deadline:
                    raise
                self._warn(f"waits for the brokers: {error}")
            self._check()
            time.sleep(_RETRY_S)

    def _pause_if_idle(self) -> None:
        """Brokers are not asked a hundred times a second; new partitions are looked at at once."""
        left_s = self._idle_since + _IDLE_S - time.monotonic()
        if left_s > 0:
            self.holdings.changed.clear()
            self.holdings.changed.wait(left_s)

    def done(self, batch: PlannedBatch) -> None:
        """The checkpoint has this micro-batch, the last that was planned."""
        lost = self.holdings.done()
        self.resume_behind(batch)  # should a partition of it be lost, and come back, before the group is told
        if not lost:
            return
        log.warning(
            "lost %s in the middle of micro-batch %d (%s), which is done now, after %.1f s: its offsets are not "
            "committed over those of whoever may own them, and its records may come again. Where micro-batches take "
            "longer than the group's rebalance timeout, give it a longer one: 'kafka-coord groups settings %s'",
            OffsetRanges({tp: batch.ranges.of_partition(tp) for tp in lost}),
            batch.number,
            self._connector.counters.last_loss,
            time.time() - batch.planned_ms / 1000,
            self._options.group,
        )

    def replay(self, batch: PlannedBatch) -> OffsetRanges:
        """What of a logged micro-batch, whose outcome is not known, is to be read again.

        The group's offsets decide: what lies below them was done by somebody; what lies above and is this query's
        again, at exactly that point, is read again; the rest is another member's to read. Nothing is lost by it: all
        above the group's offsets is read by whoever is started there.
        """
        self.await_partitions()
        self._say_what_is_done()
        wanted = self.holdings.wanted()
        mine: dict[TopicPartition, list[tuple[int, int]]] = {}
        for partition in batch.ranges.partitions:
            position = wanted.get(partition)
            for start, end in batch.ranges.of_partition(partition):
                if position is not None and start <= position < end:
                    mine[partition] = [(position, end)]
        again = self.holdings.take(OffsetRanges(mine))
        left = batch.ranges - again
        log.info("reads micro-batch %d again: %s; left to the group: %s", batch.number, again, left)
        return again

    def resume_behind(self, batch: PlannedBatch) -> None:
        """The checkpoint says that this micro-batch is done. Where the group does not know of it yet, because the query
        ended before it could say so, it is told once the partition is this query's; where somebody wrote the offset
        since (another owner, an operator), their word stands."""
        for partition in batch.ranges.partitions:
            unsaid = _Unsaid(batch.ranges.of_partition(partition), batch.planned_ms)
            before = self._unsaid.setdefault(partition, [])
            if unsaid not in before[-1:]:  # Spark asks what is next again and again, behind the same micro-batch
                before.append(unsaid)

    def _say_what_is_done(self) -> None:
        """Goes on behind what is done by the checkpoint and not by the group. Raises :class:`StoreUnavailable`."""
        wanted = self.holdings.wanted()
        for partition in wanted.keys() & self._unsaid.keys():
            unsaid, position = self._unsaid[partition], wanted[partition]
            done = unsaid[-1].end
            if position == NO_OFFSET:
                # It had one before the micro-batch was planned, so somebody removed it: as of a topic that is another
                # now under its old name, or that an operator wants read anew.
                log.warning(
                    "the checkpoint has %s up to %d, and the group has no offset of it any more: goes on by "
                    "startingOffsets=%s",
                    partition,
                    done,
                    self._options.starting_offsets,
                )
            for batch in unsaid:
                if batch.holds(position) and not self._written_since(partition, batch.planned_ms):
                    skipped = self.holdings.skip(OffsetRanges({partition: batch.ranges}))
                    log.info("goes on behind %s: done by the checkpoint, and not by the group", skipped)
                    position = batch.end
            stored = self.holdings.stored_up_to(partition)
            if stored is None:
                continue  # lost just now
            # Until the group has it stored, a membership that ends leaves it unsaid.
            left = [batch for batch in unsaid if batch.end > stored] if position == done else []
            if left:
                self._unsaid[partition] = left
            else:
                del self._unsaid[partition]

    def _written_since(self, partition: TopicPartition, planned_ms: int) -> bool:
        found = self._store.exists(layout.offset(self._options.group, partition.topic, partition.partition))
        return found is not None and found.mtime_ms > planned_ms + _CLOCK_TOLERANCE_MS

    def await_partitions(self) -> None:
        """Until the coordinator has given this query something, or the options' ``waitMs`` are over. They are counted
        from when it is registered, which takes a while where its name is still held by a driver that was killed."""
        wait_s = self._options.wait_ms / 1000
        deadline = time.monotonic() + wait_s
        latest = deadline + 2.0 + self._options.session_timeout_ms * 1.5 / 1000
        while not self.holdings.wanted():
            self._check()
            now = time.monotonic()
            if self._connector.registration is None:
                deadline = min(now + wait_s, latest)
            if now >= deadline:
                return
            self.holdings.changed.clear()
            if not self.holdings.wanted():
                self.holdings.changed.wait(min(deadline - now, 0.2))

    def latest(self, partitions: PartitionSet) -> dict[TopicPartition, int]:
        """The end of each partition's log, of those whose broker answers. Raises :class:`BrokerError` if none does."""
        found = self._reader().latest(partitions)
        if found.note and found.offsets:
            self._warn(f"reads nothing of some partitions for now: {found.note}")
        if partitions and not found.offsets:
            self._offsets = None
            raise BrokerError(f"no end offset of {partitions} could be had: {found.note}")
        return dict(found.offsets)

    def last_ends(self) -> dict[TopicPartition, int]:
        """The ends as of the last plan, without asking anybody."""
        return dict(self._ends)

    @property
    def bootstrap(self) -> str:
        """The brokers, for those who fetch."""
        if not self._bootstrap:
            self._bootstrap = bootstrap_servers(self._store, self._options.kafka)
        return self._bootstrap

    def _positions(
        self, wanted: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Where each goes on: what was not known, or is no longer in the log, is settled by the options."""
        begins = self._begins_of(wanted, ends)
        positions: dict[TopicPartition, int] = {}
        moved: dict[TopicPartition, int] = {}
        for partition, position in wanted.items():
            if partition not in ends or partition not in begins:
                continue
            begin, end = begins[partition], ends[partition]
            if begin <= position <= end:
                self._beyond.pop(partition, None)
                positions[partition] = position
            elif position == NO_OFFSET:
                moved[partition] = begin if self._options.starting_offsets is StartingOffsets.EARLIEST else end
            elif position < begin or self._stays_beyond(partition):
                moved[partition] = self._after_loss(partition, position, begin, end)
        return positions | self._moved(moved)

    def _begins_of(
        self, wanted: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """The beginnings of their logs, asked for anew where anything depends on it."""
        now = time.monotonic()
        known = self._begins
        if now >= self._begins_until or any(
            tp not in known or not known[tp] <= position <= ends.get(tp, position) for tp, position in wanted.items()
        ):
            self._begins = dict(self._reader().earliest(PartitionSet.of(wanted)).offsets)
            self._begins_until = now + _BEGINS_S
        return self._begins

    def _stays_beyond(self, partition: TopicPartition) -> bool:
        now = time.monotonic()
        return now >= self._beyond.setdefault(partition, now) + _BEYOND_END_S

    def _after_loss(self, partition: TopicPartition, position: int, begin: int, end: int) -> int:
        policy = self._options.on_data_loss
        holds = f"its log holds {begin} to {end}: records were lost, or the topic was made anew"
        if policy is OnDataLoss.FAIL:
            raise NoOffset(
                f"group {self._options.group} goes on at {position} of {partition}, but {holds}. Set the offset with "
                "'kafka-coord groups reset-offsets', or say onDataLoss=earliest (or latest) to go on at what is there"
            )
        self._beyond.pop(partition, None)
        at = begin if policy is OnDataLoss.EARLIEST else end
        log.warning("goes on at %d of %s (onDataLoss=%s): it was at %d, but %s", at, partition, policy, position, holds)
        return at

    def _moved(self, found: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Goes on there, once the group has it stored: were it only in memory, a crash would make ``latest`` mean a
        later moment, and skip what came in between. What is not stored soon comes with a later micro-batch."""
        for partition, offset in found.items():
            self.holdings.move(partition, offset)
        deadline = time.monotonic() + _SAID_WITHIN_S

        def stored() -> dict[TopicPartition, int]:
            return {tp: at for tp, at in found.items() if self.holdings.stored_up_to(tp) in (at, None)}

        while len(stored()) < len(found) and time.monotonic() < deadline:
            time.sleep(0.01)
        return stored()

    def _reader(self) -> OffsetReader:
        if self._offsets is None:
            try:  # the brokers may have other addresses by now
                self._bootstrap = bootstrap_servers(self._store, self._options.kafka)
            except (BrokerError, StoreUnavailable):
                if not self._bootstrap:
                    raise
            try:
                self._offsets = OffsetReader(
                    self._bootstrap, dict(self._options.kafka), read_committed=self._options.reads_committed
                )
            except BrokerError as error:  # waiting would not make the settings better
                raise SettingsError(f"options kafka.*: {error}") from None
        return self._offsets

    # --- itself ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leaves the group, with what is done committed. What a micro-batch still works on is read again by others."""
        self._connector.close(_CLOSE_S, in_hand=lambda: False)  # Spark calls this between micro-batches, or never again
        self._thread.join(_CLOSE_S + 5.0)
        if self._offsets is not None:
            self._offsets.close()

    def _warn(self, sentence: str) -> None:
        now = time.monotonic()
        if now >= self._warned + _WARN_EVERY_S:
            self._warned = now
            log.warning("%s", sentence)

    def _check(self) -> None:
        self._thread.check()
        if self._connector.done:
            raise ConsumerClosed(f"query {self._options.consumer_id!r} has left group {self._options.group!r}")

    def _let_go(self) -> None:
        self.holdings.abandon()
        self._store.close()


def fair_shares(room: Mapping[TopicPartition, int], most: int) -> dict[TopicPartition, int]:
    """At most ``most`` in all: everybody the same, and what some do not need to the others. Deterministic."""
    shares = dict.fromkeys(room, 0)
    left = most
    for at, (partition, size) in enumerate(sorted(room.items(), key=lambda item: (item[1], item[0]))):
        share = min(size, left // (len(room) - at))
        shares[partition] = share
        left -= share
    return shares
