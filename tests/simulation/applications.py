"""Simulated applications: fetchers over an append-only log of each partition, and code that takes time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import NamedTuple, cast

from confluent_kafka import KafkaError

from kafka_coord.channel.operations import Offsets
from kafka_coord.consumer.assigned_client import AssignedClient, Key
from kafka_coord.consumer.fetcher import FetchErrors
from kafka_coord.consumer.settings import OffsetReset
from kafka_coord.consumer.stream_partitions import FetchedRuns, HeldPartition, Run, StreamPartitions
from kafka_coord.errors import NoOffset
from kafka_coord.model import NO_OFFSET, StartPoint, TopicPartition


class SimulatedLog:
    """Kafka's log, as the offset of each partition's next record. Record *o* is the number *o*.

    ``topics`` are the existing topics, each with an identity that distinguishes it from a later topic of the same name.
    """

    def __init__(self) -> None:
        self.ends: dict[TopicPartition, int] = {}
        self._marks: dict[TopicPartition, set[int]] = {}
        """The offsets that hold no record."""
        self.starts: dict[TopicPartition, int] = {}
        """The first offsets of logs whose oldest records have been deleted."""
        self._cuts: dict[TopicPartition, list[int]] = {}
        """Where each log was cut. The number of cuts is the epoch of its leader."""
        self.topics: dict[str, int] = {}
        self.leaderless: set[TopicPartition] = set()
        """The partitions that nobody can read or list now."""
        self.forbidden: set[tuple[str, str]] = set()
        """The consumers that may not read a topic, as pairs of consumer and topic."""

    def append(self, partition: TopicPartition, count: int) -> None:
        self.ends[partition] = self.ends.get(partition, 0) + count

    def mark(self, partition: TopicPartition, count: int) -> None:
        """Appends ``count`` offsets without a record, such as the markers of transactions."""
        end = self.ends.get(partition, 0)
        self._marks.setdefault(partition, set()).update(range(end, end + count))
        self.append(partition, count)

    def delete_records(self, partition: TopicPartition, before: int) -> None:
        """Deletes the records before that offset, as retention does."""
        self.starts[partition] = before
        self._marks.setdefault(partition, set()).update(range(before))

    def cut(self, partition: TopicPartition, at: int) -> None:
        """An unclean election: the new leader does not have the offsets from ``at`` on."""
        self._cuts.setdefault(partition, []).append(at)
        self.ends[partition] = at
        self._marks[partition] = {offset for offset in self._marks.get(partition, ()) if offset < at}

    def epoch(self, partition: TopicPartition) -> int:
        return len(self._cuts.get(partition, ()))

    def end_of_epoch(self, partition: TopicPartition, epoch: int) -> int:
        """Returns the answer to OffsetForLeaderEpoch for an earlier epoch."""
        return min(self._cuts[partition][epoch:])

    def records(self, partition: TopicPartition, begin: int, most: int) -> list[int]:
        """Returns the offsets of at most ``most`` records from ``begin`` on."""
        marks = self._marks.get(partition, set())
        return [*islice((offset for offset in range(begin, self.ends.get(partition, 0)) if offset not in marks), most)]

    def behind_marks(self, partition: TopicPartition, offset: int) -> int:
        """Returns the first offset from ``offset`` on that holds a record, or the end of the log."""
        marks = self._marks.get(partition, set())
        while offset in marks:
            offset += 1
        return offset

    def listed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the ends that an instance can list, which has all rights."""
        there = [p for p in partitions if p not in self.leaderless and p.topic in self.topics]
        return {partition: self.ends.get(partition, 0) for partition in there}

    def delete(self, topic: str) -> None:
        """Deletes the topic with all its records."""
        self.topics.pop(topic, None)
        for partition in [partition for partition in self.ends if partition.topic == topic]:
            del self.ends[partition]
            for known in (self._marks, self.starts, self._cuts):
                known.pop(partition, None)


class _Message(NamedTuple):
    partition: TopicPartition
    at: int

    def offset(self) -> int:
        return self.at


class SimulatedFetchers:
    """A model of :class:`~kafka_coord.consumer.command_loop.Fetchers`, with an application that handles one batch
    at a time."""

    def __init__(
        self,
        log: SimulatedLog,
        *,
        may_hand_out: Callable[[], bool],
        handed: Callable[[TopicPartition, int, int, bool], None],
        wake: Callable[[], None],
        topic_of: Callable[[TopicPartition], int | None],
        from_the_end: bool = False,
        reset: OffsetReset = OffsetReset.EARLIEST,
        told: Callable[[TopicPartition], None] = lambda _partition: None,
        consumer: str = "",
    ) -> None:
        """``handed`` is told which offsets the application gets, and whether they follow a cut that the fetchers must
        notice. ``topic_of`` returns the identity of the topic to which a new partition belongs. With ``from_the_end``,
        a partition without a stored offset skips the existing records (``auto_offset_reset="latest"``). ``reset``
        applies to a position that the log does not contain; with ``error``, the application is ``told``, and goes on at
        the beginning of the log."""
        self._told = told
        errors_of = cast(StreamPartitions, self), cast(AssignedClient, self)  # as far as this kind of error needs them
        self._errors = FetchErrors(*errors_of, reset, lambda _partition, _error: None)
        self._from_the_end = from_the_end
        self._consumer = consumer
        self._starting: dict[TopicPartition, int | None] = {}
        """The partitions without a position, each with its listed end once that is known."""
        self._refused: dict[str, str] = {}
        self._log = log
        self._topic_of = topic_of
        self._topics: dict[TopicPartition, int | None] = {}
        self._may_hand_out = may_hand_out
        self._handed = handed
        self._wake = wake
        self.holdings: dict[TopicPartition, HeldPartition] = {}
        self._live: dict[Key, HeldPartition] = {}
        self._runs = FetchedRuns(self._live)
        self.batch: list[HeldPartition] = []
        self._orphans = False
        self._epochs: dict[HeldPartition, int] = {}
        """The leader's epoch of the last batch of each partition. Unknown before the first batch, also after a seek."""
        self._follows: set[HeldPartition] = set()
        """The partitions that must go on at the end of their epoch, because their logs were cut."""
        self._listed: dict[HeldPartition, int] = {}
        """Where the log of each partition began when its fetch began. Retention may move that before a record comes."""
        self._on_course: set[HeldPartition] = set()
        """The partitions of which something was handed out since they began, and since a cut that they could not
        follow. Any other may stand where an offset of before a cut says."""

    # --- the application ---------------------------------------------------------------------------------------------

    def poll(self, most: int) -> bool:
        """Finishes the batch in hand, and takes the next one. Tells whether there was one."""
        self.finish()
        if not self._may_hand_out():
            return False
        self._live.clear()
        for partition in sorted(self.holdings):
            # brokers distinguish topics by their ids
            there = self._log.topics.get(partition.topic) == self._topics[partition]
            readable = partition not in self._log.leaderless and not self._forbids(partition.topic)
            if self.holdings[partition].wanted and there and readable:
                self._live[partition] = self.holdings[partition]
                self._fetch(self.holdings[partition], most)
        handed: dict[TopicPartition, int] = {}
        begins = {
            holding.partition: self._log.behind_marks(holding.partition, max(holding.position, 0))
            for holding in self._live.values()
        }
        for message in self._runs.take(most * max(1, len(self._live))):
            handed[message.partition] = message.offset() + 1
        for partition, end in handed.items():
            holding = self.holdings[partition]
            self._handed(partition, begins[partition], end, holding in self._follows)
            self._follows.discard(holding)
            self._on_course.add(holding)
            self.batch.append(holding)
        return bool(self.batch)

    def _fetch(self, holding: HeldPartition, most: int) -> None:
        """Fetches ahead: twice as much as the application takes at a time, and where the fetcher then stands."""
        partition, end = holding.partition, self._log.ends.get(holding.partition, 0)
        epoch, newest = self._epochs.get(holding), self._log.epoch(partition)
        if epoch is not None and epoch < newest:  # librdkafka asks each new leader
            self._epochs[holding] = newest
            at = self._log.end_of_epoch(partition, epoch)
            said = f"Partition log truncation detected at the end: broker end offset is {at}"
            self._errors.handle(holding, KafkaError(KafkaError._AUTO_OFFSET_RESET, said))
            return
        if any(run.holding is holding for run in self._runs._queue):
            return
        at = self._listed[holding] if holding.position == NO_OFFSET else holding.position
        if at < self._log.starts.get(partition, 0) or at > end:
            self._errors.handle(holding, KafkaError(KafkaError.OFFSET_OUT_OF_RANGE))
            return
        found = self._log.records(partition, max(holding.position, 0), 2 * most)
        if found:
            self._epochs[holding] = newest
            self._runs.add(Run(holding, [_Message(partition, offset) for offset in found]))
        if self._log.behind_marks(partition, found[-1] + 1 if found else max(holding.position, 0)) == end:
            self._runs.reached(holding, end)

    def finish(self) -> None:
        """Records that the application has finished its batch."""
        wake = self._orphans or any(holding.stopping for holding in self.batch)
        for holding in self.batch:
            holding.mark_consumed()
        self.batch, self._orphans = [], False
        self._runs.in_hand.clear()
        if wake:
            self._wake()

    # --- what FetchErrors asks for -----------------------------------------------------------------------------------

    def bounds_of(self, partition: TopicPartition) -> tuple[int, int]:
        return self._log.starts.get(partition, 0), self._log.ends.get(partition, 0)

    def position(self, holding: HeldPartition) -> int:
        return holding.position

    def try_again(self, partition: TopicPartition) -> None:
        self._runs.drop({partition})
        self._epochs.pop(self.holdings[partition], None)
        self._listed[self.holdings[partition]] = self._log.starts.get(partition, 0)
        self.holdings[partition].renew()

    def seek_back(self, partition: TopicPartition, by: int) -> int | None:
        """Lets the application finish its batch and go back by so many offsets. Returns where it goes on, or ``None``
        if it cannot."""
        holding = self.holdings[partition]
        if not (holding.wanted and self._may_hand_out()) or holding in self._follows or partition in self._starting:
            return None
        self.finish()
        to = max(self._log.starts.get(partition, 0), holding.consumed - by)
        if to >= holding.consumed or holding.consumed > self._log.ends.get(partition, 0):
            return None
        self.seek(holding, to)
        return to

    def seek(self, holding: HeldPartition, offset: int) -> None:
        holding.move_to(offset)
        self.try_again(holding.partition)

    def fail(self, holding: HeldPartition, _failure: NoOffset) -> None:
        self._told(holding.partition)
        self._follows.discard(holding)
        self._on_course.discard(holding)  # it goes back, whatever happens to the log from now on
        self.seek(holding, self.bounds_of(holding.partition)[0])

    # --- cut logs ----------------------------------------------------------------------------------------------------

    def log_was_cut(self, partition: TopicPartition) -> None:
        holding = self.holdings.get(partition)
        if holding is None:
            return
        if holding in self._epochs and holding in self._on_course:
            self._follows.add(holding)
        else:
            self._follows.discard(holding)
            self._on_course.discard(holding)

    def follows(self, partition: TopicPartition) -> bool:
        return self.holdings.get(partition) in self._follows

    # --- Fetchers ----------------------------------------------------------------------------------------------------

    def hold(self, starts: Mapping[TopicPartition, StartPoint]) -> None:
        for partition, point in starts.items():
            if partition not in self.holdings:
                self.holdings[partition] = HeldPartition(partition, point.offset)
                if point.offset == NO_OFFSET and self._from_the_end and not point.later:
                    self._starting[partition] = None
                self._topics[partition] = self._topic_of(partition)

    def _forbids(self, topic: str) -> bool:
        """Tells whether the brokers refuse the topic to this consumer, and remembers the refusal."""
        if (self._consumer, topic) not in self._log.forbidden:
            return False
        if topic not in self._refused:
            self._refused[topic] = "TOPIC_AUTHORIZATION_FAILED"
            self._wake()
        return True

    def unresolved(self) -> Mapping[TopicPartition, str]:
        for partition, end in self._starting.items():
            there = self._log.topics.get(partition.topic) == self._topics[partition]
            if end is None and there and partition not in self._log.leaderless and not self._forbids(partition.topic):
                self._starting[partition] = self._log.ends.get(partition, 0)
        return dict.fromkeys(self._starting, "no leader")

    def listed_ends(self) -> Offsets:
        return {partition: end for partition, end in self._starting.items() if end is not None}

    def resolve(self, offsets: Offsets) -> None:
        for partition in self._starting.keys() & offsets.keys():
            self.holdings[partition].start_at(offsets[partition])
            del self._starting[partition]

    def refused(self) -> Mapping[str, str]:
        for topic in [topic for topic in self._refused if (self._consumer, topic) not in self._log.forbidden]:
            del self._refused[topic]
        return dict(self._refused)

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            if partition in self.holdings:
                self.holdings[partition].begun = True
                self._listed[self.holdings[partition]] = self._log.starts.get(partition, 0)

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            if partition in self.holdings:
                self.holdings[partition].stopping = True

    def in_hand(self, partitions: Iterable[TopicPartition]) -> bool:
        wanted = set(partitions)
        return any(holding.partition in wanted for holding in self.batch)

    def held_partitions(self) -> Iterable[TopicPartition]:
        return tuple(self.holdings)

    def release(self, partitions: Iterable[TopicPartition]) -> Offsets:
        wanted = [partition for partition in partitions if partition in self.holdings]
        offsets = self.uncommitted(wanted)
        for partition in wanted:
            del self.holdings[partition]
            self._starting.pop(partition, None)
        return offsets

    def uncommitted(self, partitions: Iterable[TopicPartition] | None = None) -> Offsets:
        wanted = self.holdings if partitions is None else [p for p in partitions if p in self.holdings]
        found = {partition: self.holdings[partition].to_commit(auto_commit=True) for partition in wanted}
        return {partition: offset for partition, offset in found.items() if offset is not None}

    def admissible(self, offsets: Offsets) -> Offsets:
        return {
            partition: offset
            for partition, offset in offsets.items()
            if partition in self.holdings and self.holdings[partition].admit(offset) is not None
        }

    def stored(self, offsets: Offsets) -> None:
        for partition, offset in offsets.items():
            if partition in self.holdings:
                self.holdings[partition].stored(offset)

    def abandon(self) -> Iterable[TopicPartition]:
        lost = tuple(self.holdings)
        self.holdings.clear()
        self._starting.clear()
        self._orphans = self._orphans or bool(self.batch)
        self.batch = []
        return lost

    def orphans_in_hand(self) -> bool:
        return self._orphans
