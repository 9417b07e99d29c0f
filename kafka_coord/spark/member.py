"""The query as a member of its group. It registers, carries out commands and plans micro-batches on Spark's driver."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.consumer.connector import Connector, ConnectorThread
from kafka_coord.consumer.settings import member_settings
from kafka_coord.consumer.troubles import Absences, look_in_zookeeper, missing_topics
from kafka_coord.errors import (
    BrokerError,
    ConsumerClosed,
    NoOffset,
    NotFound,
    SettingsError,
    StoreError,
    StoreUnavailable,
)
from kafka_coord.kafka.brokers import bootstrap_servers
from kafka_coord.kafka.offsets import OffsetReader
from kafka_coord.model import NO_OFFSET, PartitionSet, TopicPartition
from kafka_coord.model.offsets import LogRange
from kafka_coord.spark.fetching import out_of_range
from kafka_coord.spark.holdings import BatchHoldings
from kafka_coord.spark.options import OnDataLoss, SourceOptions, StartingOffsets
from kafka_coord.spark.ranges import NO_RANGES, OffsetRange, OffsetRanges, PlannedBatch
from kafka_coord.zk import connect_with, layout
from kafka_coord.zk.brokers import await_new

log = logging.getLogger(__name__)

_CLOCK_TOLERANCE_MS = 2_000
"""The assumed maximum difference between ZooKeeper's clock and the driver's, when deciding whether an offset was
written after a batch was planned.
"""
_CLOSE_S = 10.0
_WARN_EVERY_S = 10.0
_RETRY_S = 0.2
_SAID_WITHIN_S = 2.0
"""How long a micro-batch waits, in seconds, for the group to store a partition's first offset."""
_OUT_OF_RANGE_S = 1.0
"""How long, in seconds, a plan waits for brokers to say whether an offset is out of range."""
_BEGINS_S = 10.0
"""How long to reuse the start offsets of the logs, in seconds. Retention moves them slowly, and a fetch detects a
change."""
_RIGHTS_S = 10.0
"""How often, in seconds, the query asks what it may read."""
_REFUSED_S = 1.0
"""How often, in seconds, the query asks while it may not read some topic."""
_IDLE_S = 0.05
"""The pause, in seconds, after a poll that found nothing. Spark's default trigger would poll again after only 10 ms."""


@dataclass(frozen=True, slots=True)
class _FinishedRange:
    """One partition's ranges in a micro-batch that the checkpoint counts as finished. The micro-batch was planned at
    ``planned_ms``. The group might not have stored the end offset of the ranges yet.
    """

    ranges: tuple[OffsetRange, ...]
    planned_ms: int

    @property
    def end(self) -> int:
        return self.ranges[-1].end

    def holds(self, offset: int) -> bool:
        return any(one.start <= offset < one.end for one in self.ranges)


class QueryMember:
    """A query's membership. The constructor registers the member, and :meth:`close` leaves the group. Only Spark's
    planner thread may call the methods; the connector runs on its own thread.
    """

    def __init__(self, options: SourceOptions, holdings: type[BatchHoldings] = BatchHoldings) -> None:
        self._options = options
        self._settings = member_settings(
            group=options.group,
            topics=options.topics or None,
            include=options.pattern,
            consumer_id=options.consumer_id,
            capacity=options.capacity,
            rejoin_grace_ms=options.rejoin_grace_ms,
        )
        self._wakeup = threading.Event()
        self._store = connect_with(options.zookeeper)
        self._channel = ConsumerChannel(self._store, options.group, options.consumer_id)
        self.holdings = holdings(
            self._wakeup.set,
            from_the_end=options.starting_offsets is StartingOffsets.LATEST,
            later_from_the_end=options.new_partitions is StartingOffsets.LATEST,
        )
        self._connector = Connector(
            self._store,
            self._channel,
            self.holdings,
            registration_value=partial(self._settings.registration_value, self._store),
            wake=self._wakeup.set,
            auto_commit_interval_s=0.2,
        )
        self._offsets: OffsetReader | None = None
        self._bootstrap = ""
        self._ends: dict[TopicPartition, int] = {}
        self._begins: dict[TopicPartition, int] = {}
        self._begins_until = 0.0
        self._idle_since = float("-inf")
        self._finished: dict[TopicPartition, list[_FinishedRange]] = {}
        """Each partition's finished ranges, in the order in which they were finished."""
        self._at_end: set[TopicPartition] = set()
        """The partitions that began at their ends since the last plan."""
        self._warned = -_WARN_EVERY_S
        self._look = look_in_zookeeper(self._store, options.group)
        self._absences = Absences(
            options.group,
            options.consumer_id,
            self._look,
            subscription=lambda: self._settings.member.subscription,
            known=lambda: frozenset(partition.topic for partition in self.holdings.held_partitions()),
            assignor=self._settings.member.assignor,
        )
        self._told: dict[TopicPartition, str] = {}
        """The partitions that cannot be read, as last told, each with the reason."""
        self._rights_of: frozenset[str] = frozenset()
        self._rights_until = 0.0
        self._thread = ConnectorThread(
            self._connector,
            self._store,
            self._channel,
            self._wakeup,
            consumer=options.consumer_id,
            meanwhile=self._absences.step,
            at_end=self._let_go,
        )
        self._thread.start()

    # --- planning ----------------------------------------------------------------------------------------------------

    def plan(self, most: int, upto: Mapping[TopicPartition, int] | None = None) -> OffsetRanges:
        """Returns the ranges of the next micro-batch: at most ``most`` offsets, shared fairly among the partitions that
        the query owns now. With ``upto``, returns only offsets below these ends, and only for the partitions that have
        one.

        Returns an empty result if there is nothing new, if the membership is uncertain, or if the offsets cannot be
        read from the brokers or ZooKeeper. In the last case, logs a warning; planning resumes when the servers respond
        again, or when the coordinator revokes the partitions of deleted topics. Raises the error that ended the
        membership, and :class:`NoOffset` if records are gone and the options say to fail.
        """
        self._check()
        self._pause_if_idle()
        try:
            self._commit_finished()
            self._list_first_ends()
            self._at_end.clear()  # from here on, it is this query itself that finishes their ranges
            readable = self._readable()
            if upto is not None:
                readable = {tp: position for tp, position in readable.items() if tp in upto}
            if not readable:
                self._ends = {}
            if not readable or most < 1:
                return NO_RANGES
            ends = self._ends = self.latest(PartitionSet.of(readable))
            positions = self._positions(readable, ends)
        except (BrokerError, StoreUnavailable) as error:
            self._warn(f"not reading for now: {error}")
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
        """Like :meth:`plan`, but for a run that ends with the first empty plan. So if records before ``upto`` remain
        unread, first waits up to ``waitMs`` for the brokers and ZooKeeper to respond, and for the query to rejoin if it
        has lost its membership.
        """
        deadline = time.monotonic() + self._options.wait_ms / 1000
        while True:
            if upto and (self._connector.registration is None or not self.holdings.wanted()):
                self.await_partitions()
            registration = self._connector.registration
            ranges = self.plan(most, upto)
            readable = self.holdings.wanted()
            left = [tp for tp, end in upto.items() if readable.get(tp, end) < end]
            # Without a membership, the query does not hold any partitions, but there may still be records to read.
            lost = registration is not self._connector.registration or not self._connector.may_hand_out()
            if ranges or not (left or (lost and upto)):
                return ranges
            if time.monotonic() >= deadline:
                log.warning(
                    "ending this run before it has read all records that existed at its start: %s",
                    ", ".join(map(str, left or upto)),
                )
                return ranges

    def ends_now(self) -> dict[TopicPartition, int]:
        """Returns the log ends of the query's partitions. Waits up to ``waitMs`` for the servers, like
        :meth:`plan_all`. If they still do not respond, raises :class:`BrokerError` or :class:`StoreUnavailable`.

        Raises :class:`NotFound` if no coordinator is elected, or if a topic does not exist that the options name, like
        Spark's own source. With ``onDataLoss=earliest`` or ``latest``, a missing topic is only said.
        """
        deadline = time.monotonic() + self._options.wait_ms / 1000
        while True:
            try:
                if not self._has_topics():
                    return {}
                self.await_partitions()
                readable = self._readable()  # empty if none were assigned in time or all were lost
                if not readable and time.monotonic() >= deadline:
                    self._say_none_assigned()
                ends = self.latest(PartitionSet.of(readable)) if readable else {}
                unknown = readable.keys() - ends.keys()
                if unknown and time.monotonic() >= deadline:
                    log.warning("this run does not read %s: nobody tells where they end", PartitionSet.of(unknown))
                if (readable and not unknown) or time.monotonic() >= deadline:
                    return ends
            except (BrokerError, StoreUnavailable) as error:
                if time.monotonic() >= deadline:
                    raise
                self._warn(f"waiting for the brokers: {error}")
            self._check()
            time.sleep(_RETRY_S)

    def _has_topics(self) -> bool:
        """Returns whether any topic exists that the query subscribes to. Raises :class:`NotFound`."""
        wanted = self._settings.member.subscription
        with suppress(StoreError):
            await_new(self._store, dict.fromkeys(wanted.topics))
        present = self._look(wanted, frozenset())
        missing = missing_topics(wanted, present.topics) if present is not None else ()
        if missing and not wanted.is_wildcard and self._options.on_data_loss is OnDataLoss.FAIL:
            raise NotFound(
                f"topics that the option 'topics' names do not exist: {', '.join(missing)}. Create them, or set "
                "onDataLoss=earliest (or latest) to read only those that exist"
            )
        return not missing if wanted.is_wildcard else len(missing) < len(wanted.topics)

    def _say_none_assigned(self) -> None:
        """Says that the group gave the query no partitions within ``waitMs``. Raises :class:`NotFound` if that is
        because no coordinator is elected."""
        present = self._look(self._settings.member.subscription, frozenset())
        if present is not None and present.elected is False:
            raise NotFound(
                f"no coordinator is elected, so group {self._options.group!r} assigns no partitions; check that "
                "'kafka-coord serve' runs, with the same zookeeper.hosts and chroot"
            )
        self._warn(
            f"no partitions were assigned to this query within waitMs={self._options.wait_ms}: this run reads nothing "
            f"unless other members leave; see 'kafka-coord groups describe {self._options.group}'"
        )

    def _readable(self) -> dict[TopicPartition, int]:
        """Returns the partitions that a micro-batch may read now, without those of topics that the query may not read.
        Raises :class:`BrokerError`."""
        readable = self.holdings.wanted()
        refused = self._refused({tp.topic for tp in self.holdings.held_partitions()})
        self._tell()
        return {tp: position for tp, position in readable.items() if tp.topic not in refused}

    def _refused(self, topics: set[str]) -> Mapping[str, str]:
        """Returns the topics that the query may not read. Asks the brokers when a topic is new, when a refusal may have
        ended, and from time to time."""
        refused = self.holdings.refused()
        asked = topics | refused.keys()
        now = time.monotonic()
        if asked and (not asked <= self._rights_of or now >= self._rights_until):
            refused = self._reader().refused(asked, refused)
            self.holdings.refuse(refused)
            self._rights_of = frozenset(asked)
            self._rights_until = now + (_REFUSED_S if refused else _RIGHTS_S)
        return refused

    def _list_first_ends(self) -> None:
        """Lists the ends of partitions that start there, and waits briefly for the group to keep them."""
        starting = self.holdings.starting()
        if not starting:
            return
        self._at_end |= starting
        self._forget_what_the_group_forgot()
        found = self._reader().latest(PartitionSet.of(starting))
        missing = starting - found.offsets.keys()
        self.holdings.first_ends(found.offsets, dict.fromkeys(missing, found.note))
        self._tell()
        deadline = time.monotonic() + _SAID_WITHIN_S
        while self.holdings.starting() & found.offsets.keys() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _tell(self) -> None:
        """Tells once when partitions cannot be read, and once when they can, or are not held any more. Those of a topic
        that the query may not read stay told until it may, also after the coordinator has given them to others."""
        refused, held = self.holdings.refused(), set(self.holdings.held_partitions())
        current = {tp: reason for tp, reason in self._told.items() if tp.topic in refused}
        current |= {tp: reason for tp, reason in self.holdings.unresolved().items() if reason and tp not in current}
        current |= {tp: refused[tp.topic] for tp in held if tp.topic in refused and tp not in current}
        begun, ended = current.keys() - self._told.keys(), self._told.keys() - current.keys()
        if begun:
            log.warning(
                "cannot read %s (%s); holding them without reading, and trying again",
                *(PartitionSet.of(begun), "; ".join(sorted({current[tp] for tp in begun}))),
            )
        if ended:
            log.warning("resolved or released %s, which could not be read", PartitionSet.of(ended))
        self._told = current

    def _pause_if_idle(self) -> None:
        """Limits how often an idle query sends requests to the brokers, without delaying new partitions."""
        left_s = self._idle_since + _IDLE_S - time.monotonic()
        if left_s > 0:
            self.holdings.changed.clear()
            self.holdings.changed.wait(left_s)

    def done(self, batch: PlannedBatch) -> None:
        """Records that the checkpoint has stored ``batch``, the last one planned."""
        lost = self.holdings.done()
        self.resume_behind(batch)  # partitions may be lost and regained before the group has stored their offsets
        if not lost:
            return
        log.warning(
            "lost %s in the middle of micro-batch %d (%s), which ended after %.1f s: its offsets are not committed, "
            "because other members may own the partitions, and its records may be read again. If micro-batches take "
            "longer than the group's rebalance timeout, set a longer one: 'kafka-coord groups settings %s'",
            OffsetRanges({tp: batch.ranges.of_partition(tp) for tp in lost}),
            batch.number,
            self._connector.counters.last_loss,
            time.time() - batch.planned_ms / 1000,
            self._options.group,
        )

    def replay(self, batch: PlannedBatch) -> OffsetRanges:
        """Returns the part of a logged micro-batch that the query must read again, because the outcome of the
        micro-batch is unknown. The group's offsets decide: some member has processed the records below them. From there
        on, the query reads the records again if it owns the partition and its position is within the micro-batch's
        range. It leaves all other records to the other members. None are lost, because the next owner starts at the
        group's offset.
        """
        self.await_partitions()
        self._commit_finished()
        readable = self.holdings.wanted() if self._connector.may_hand_out() else {}
        mine: dict[TopicPartition, list[tuple[int, int]]] = {}
        for partition in batch.ranges.partitions:
            position = readable.get(partition)
            for start, end in batch.ranges.of_partition(partition):
                if position is not None and start <= position < end:
                    mine[partition] = [(position, end)]
        again = self.holdings.take(OffsetRanges(mine))
        left = batch.ranges - again
        log.info(
            "reading micro-batch %d again: %s; not reading (done, or left to other members): %s",
            batch.number,
            again,
            left,
        )
        return again

    def resume_behind(self, batch: PlannedBatch) -> None:
        """Records that the checkpoint counts ``batch`` as finished. An earlier run may have ended before it committed
        the batch's offsets to the group. The query therefore commits them once it owns the partitions, unless another
        owner or an operator has written an offset since.
        """
        for partition in batch.ranges.partitions:
            finished = _FinishedRange(batch.ranges.of_partition(partition), batch.planned_ms)
            before = self._finished.setdefault(partition, [])
            if finished not in before[-1:]:  # Spark may ask more than once for what follows the same micro-batch
                before.append(finished)
        self._forget_what_the_group_forgot()

    def _commit_finished(self) -> None:
        """Continues after ranges that the checkpoint counts as finished but the group has not committed. Raises
        :class:`StoreUnavailable`.
        """
        readable = self.holdings.wanted()
        for partition in readable.keys() & self._finished.keys():
            finished, position = self._finished[partition], readable[partition]
            done = finished[-1].end
            if position == NO_OFFSET:
                # The group had an offset when the micro-batch was planned, so the offset has been removed since: the
                # topic was recreated, or an operator wants the records to be read again.
                self._say_forgotten(partition, "beginning")
            for batch in finished:
                if batch.holds(position) and not self._written_since(partition, batch.planned_ms):
                    skipped = self.holdings.skip(OffsetRanges({partition: batch.ranges}))
                    log.info(
                        "continuing after %s, which the checkpoint covers but the group has not committed", skipped
                    )
                    position = batch.end
            stored = self.holdings.stored_up_to(partition)
            if stored is None:
                continue  # the partition has just been lost
            # Keep the range as finished until the group has stored it, because the membership may end before that.
            left = [batch for batch in finished if batch.end > stored] if position == done else []
            if left:
                self._finished[partition] = left
            else:
                del self._finished[partition]

    def _forget_what_the_group_forgot(self) -> None:
        """Says of which finished ranges the group does not know, so that their partitions began at their ends."""
        for partition in self._at_end & self._finished.keys():
            self._say_forgotten(partition, "end")
            del self._finished[partition]

    def _say_forgotten(self, partition: TopicPartition, where: str) -> None:
        log.warning(
            "the checkpoint covers %s up to %d, but the group no longer stores an offset for it: continuing at its %s",
            *(partition, self._finished[partition][-1].end, where),
        )

    def _written_since(self, partition: TopicPartition, planned_ms: int) -> bool:
        found = self._store.exists(layout.offset(self._options.group, partition.topic, partition.partition))
        return found is not None and found.mtime_ms > planned_ms + _CLOCK_TOLERANCE_MS

    def await_partitions(self) -> None:
        """Waits up to ``waitMs`` for the coordinator to assign partitions, or until ZooKeeper answers again. The wait
        starts when the query has registered, which it cannot do while the session of a killed driver still holds its
        name.
        """
        wait_s = self._options.wait_ms / 1000
        deadline = time.monotonic() + wait_s
        latest = deadline + 2.0 + self._options.session_timeout_ms * 1.5 / 1000
        while not (self.holdings.wanted() and self._connector.may_hand_out()):
            self._check()
            now = time.monotonic()
            try:
                self._list_first_ends()
            except (BrokerError, StoreUnavailable) as error:
                self._warn(f"waiting for the brokers: {error}")
            if self._connector.registration is None:
                deadline = min(now + wait_s, latest)
            if now >= deadline:
                return
            self.holdings.changed.clear()
            if not (self.holdings.wanted() and self._connector.may_hand_out()):
                self.holdings.changed.wait(min(deadline - now, 0.2))

    def latest(self, partitions: PartitionSet) -> dict[TopicPartition, int]:
        """Returns the log end of each partition whose broker responds. Raises :class:`BrokerError` if no broker
        responds."""
        ends = self._reader().latest(partitions)
        if ends.note and ends.offsets:
            self._warn(f"not reading from some partitions for now: {ends.note}")
        if partitions and not ends.offsets:
            self._close_reader()
            raise BrokerError(f"no broker returned end offsets for {partitions}: {ends.note}")
        return dict(ends.offsets)

    def last_logs(self) -> dict[TopicPartition, LogRange]:
        """Returns where the logs start and end, as of the last plan, without querying the brokers. A start is up to
        :data:`_BEGINS_S` seconds older."""
        begins = self._begins
        return {tp: LogRange(begins[tp], end) for tp, end in list(self._ends.items()) if tp in begins}

    @property
    def bootstrap(self) -> str:
        """The brokers' addresses, which the fetching tasks use."""
        if not self._bootstrap:
            self._bootstrap = bootstrap_servers(self._store, self._options.kafka)
        return self._bootstrap

    def _positions(
        self, current: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Returns the offset at which to continue in each partition. If the current position is unknown or no longer in
        the log, the options determine it.
        """
        begins = self._begins_of(current, ends)
        positions: dict[TopicPartition, int] = {}
        moved: dict[TopicPartition, int] = {}
        beyond: dict[TopicPartition, int] = {}
        for partition, position in current.items():
            if partition not in ends or partition not in begins:
                continue
            begin, end = begins[partition], ends[partition]
            if begin <= position <= end:
                positions[partition] = position
            elif position == NO_OFFSET:  # one that starts at its end has no turn before the group has stored that end
                moved[partition] = begin
            elif position < begin:
                moved[partition] = self._after_loss(partition, position, begin, end)
            else:
                beyond[partition] = position
        # A listed end may be old: a new leader does not know yet how far its predecessor had let consumers read.
        settings = {**self._options.kafka, "bootstrap.servers": self.bootstrap}
        for partition in out_of_range(beyond, settings, _OUT_OF_RANGE_S) if beyond else ():
            moved[partition] = self._after_loss(partition, beyond[partition], begins[partition], ends[partition])
        return positions | self._moved(moved)

    def _begins_of(
        self, current: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """Returns the start offsets of the logs. Asks the brokers for them again from time to time, and whenever a
        decision depends on one of them."""
        now = time.monotonic()
        begins = self._begins
        if now >= self._begins_until or any(
            tp not in begins or not begins[tp] <= position <= ends.get(tp, position) for tp, position in current.items()
        ):
            self._begins = dict(self._reader().earliest(PartitionSet.of(current)).offsets)
            self._begins_until = now + _BEGINS_S
        return self._begins

    def _after_loss(self, partition: TopicPartition, position: int, begin: int, end: int) -> int:
        policy = self._options.on_data_loss
        holds = (
            f"the log starts at {begin}, and its next offset is {end}: records were lost, or the topic was recreated"
        )
        if policy is OnDataLoss.FAIL:
            raise NoOffset(
                f"group {self._options.group} continues at {position} of {partition}, but {holds}. Set the offset with "
                "'kafka-coord groups reset-offsets', or set onDataLoss=earliest (or latest) to read what is there"
            )
        if position < begin:  # what still exists is read
            at, lost = begin, f"{begin - position} unread records are gone; "
        else:
            at, lost = begin if policy is OnDataLoss.EARLIEST else end, ""
        log.warning(
            "%s: continuing at %d instead of %d because of onDataLoss=%s; %s%s",
            *(partition, at, position, policy, lost, holds),
        )
        return at

    def _moved(self, targets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Moves the partitions to the given offsets, waits briefly for the group to store them, and returns those that
        it has stored. The other partitions are left for a later micro-batch, because an offset that exists only in
        memory must not be used: after a crash, ``latest`` would resolve to a later offset, and the query would skip the
        records in between.
        """
        for partition, offset in targets.items():
            self.holdings.move(partition, offset)
        deadline = time.monotonic() + _SAID_WITHIN_S

        def stored() -> dict[TopicPartition, int]:
            return {tp: at for tp, at in targets.items() if self.holdings.stored_up_to(tp) in (at, None)}

        while len(stored()) < len(targets) and time.monotonic() < deadline:
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
            except BrokerError as error:  # waiting would not fix wrong settings
                raise SettingsError(f"options kafka.*: {error}") from None
        return self._offsets

    # --- closing -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Commits the finished ranges and leaves the group. Other members read an unfinished micro-batch again."""
        self._connector.close(_CLOSE_S, in_hand=lambda: False)  # Spark calls this between or after micro-batches
        self._thread.join(_CLOSE_S + 5.0)
        self._close_reader()

    def _close_reader(self) -> None:
        reader, self._offsets = self._offsets, None
        if reader is not None:
            reader.close()

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
    """Distributes at most ``most`` offsets equally and returns each partition's share. What one partition does not need
    goes to the others. The result is deterministic.
    """
    shares = dict.fromkeys(room, 0)
    left = most
    for at, (partition, size) in enumerate(sorted(room.items(), key=lambda item: (item[1], item[0]))):
        share = min(size, left // (len(room) - at))
        shares[partition] = share
        left -= share
    return shares
