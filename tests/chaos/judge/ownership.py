"""The owners of each partition over time, according to the consumers' own files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kafka_coord.model import TopicPartition
from tests.chaos.journal import (
    Closed,
    Committed,
    Committing,
    ConsumerJournal,
    Handed,
    Lost,
    Rejoined,
    Started,
    Stopped,
    Stretch,
)


class Ending(StrEnum):
    """How an ownership ends."""

    STOPPED = "stopped"
    """By a stop-fetcher or a leave."""
    LOST = "lost"
    """The membership ended, and the consumer survived."""
    CLOSED = "closed without a stop"
    """The consumer left while ZooKeeper did not answer."""
    DIED = "died"
    OPEN = "still held"
    """The process was alive when the run ended."""


class HandOut(NamedTuple):
    """Records ``first`` to ``end - 1`` of the partition, handed out at ``t`` by a call that began at ``since``."""

    since: float
    t: float
    first: int
    end: int
    number: int


@dataclass(slots=True, eq=False)
class Ownership:
    """One consumer's ownership of one partition.

    ``offset`` is the assigned start, or None if it is unknown. With ``lost_after_stop``, the membership was lost
    directly after the stop, so the stop may be unacknowledged. ``stray`` are records handed out after the end. The
    consumer is a ``stock`` Kafka client, or is ``eager``, so it gives up all partitions whenever its share changes.
    """

    group: str
    partition: TopicPartition
    consumer: str
    process: str
    pid: int
    begin: float
    offset: int | None
    end: float = float("inf")
    ending: Ending = Ending.OPEN
    lost_after_stop: bool = False
    handed: list[HandOut] = field(default_factory=list)
    stray: list[HandOut] = field(default_factory=list)
    commits: list[tuple[float, int]] = field(default_factory=list)
    stock: bool = False
    eager: bool = False
    asked: set[int] = field(default_factory=set)
    """The offsets that a stock client requested to commit, or may have requested if it commits automatically."""

    @property
    def given(self) -> tuple[HandOut, ...]:
        """All handed-out records, including those after the end."""
        return (*self.handed, *self.stray)

    @property
    def first(self) -> int | None:
        """The actual start, which is the assigned offset or else the first handed-out offset."""
        return self.offset if self.offset is not None else self.handed[0].first if self.handed else None

    @property
    def position(self) -> int | None:
        """The offset after the last handed-out record, or else the start."""
        return self.handed[-1].end if self.handed else self.offset

    @property
    def crashed(self) -> bool:
        """Whether the end allows the next owner to read uncommitted records again."""
        if self.lost_after_stop or self.ending in {Ending.LOST, Ending.DIED, Ending.CLOSED}:
            return True
        # A stock client gives up its partitions even if nobody acknowledges its last commit.
        return (
            self.stock
            and self.ending is Ending.STOPPED
            and bool(self.handed)
            and self.handed[-1].end > self.committed()
        )

    def committed(self, by: float = float("inf")) -> int:
        """Returns the lowest allowed start of the next owner, as of that time. This is the acknowledged commit, or -1
        if there is none. A stock client may send an older commit again after a newer one."""
        known = [offset for t, offset in self.commits if t <= by]
        return (known[-1] if self.stock else max(known)) if known else -1

    def __str__(self) -> str:
        return f"{self.consumer} (pid {self.pid})"


class Misplaced(NamedTuple):
    """Records that a process handed out although it did not own their partition, according to its own file."""

    consumer: str
    group: str
    process: str
    partition: TopicPartition
    hand_out: HandOut


@dataclass(slots=True)
class Life:
    """The ownerships of one process, in order, and the records outside of them."""

    journal: ConsumerJournal
    ownerships: list[Ownership] = field(default_factory=list)
    misplaced: list[Misplaced] = field(default_factory=list)
    losses: list[tuple[float, frozenset[TopicPartition]]] = field(default_factory=list)


def life_of(journal: ConsumerJournal, died: float | None, until: float, *, stock: bool = False) -> Life:
    """Reads one file. ``died`` is the time at which the process was killed, or None. ``until`` is the run's end. With
    ``stock``, it is the file of a stock client.
    """
    return _Telling(journal, stock).told(died, until)


class _Telling:
    def __init__(self, journal: ConsumerJournal, stock: bool) -> None:
        self._life = Life(journal)
        self._stock = stock
        self._held: dict[TopicPartition, Ownership] = {}
        self._before: dict[TopicPartition, Ownership] = {}

    def told(self, died: float | None, until: float) -> Life:
        journal = self._life.journal
        for line in journal.lines:
            match line:
                case Handed(t, since, runs):
                    for run in runs:
                        self._handed(since, t, run)
                case Started(t, offsets):
                    self._started(t, offsets)
                case Stopped(t, partitions):
                    self._end(partitions, t, Ending.STOPPED)
                case Lost(t, partitions):
                    self._lost(t, partitions)
                case Committing(_, offsets):
                    self._asked(offsets)
                case Committed(t, offsets):
                    self._committed(t, offsets)
                case Closed(t):
                    self._end(list(self._held), t, Ending.CLOSED)
                case Rejoined() | _:
                    pass
        if self._held:
            self._end_of_process(died, until)
        if self._stock and not any(isinstance(line, Committing) for line in journal.lines):
            for one in self._life.ownerships:
                one.asked.update(out.end for out in one.handed)
        return self._life

    def _end_of_process(self, died: float | None, until: float) -> None:
        last = self._life.journal.lines[-1].t
        if died is not None:
            self._end(list(self._held), max(died, last), Ending.DIED)
        elif self._life.journal.torn:
            self._end(list(self._held), last, Ending.DIED)
        else:
            self._end(list(self._held), max(until, last), Ending.OPEN)

    def _started(self, t: float, offsets: Mapping[TopicPartition, int | None]) -> None:
        journal = self._life.journal
        if self._stock:  # if it held the partitions already, its consumer has failed and been replaced
            self._end(offsets.keys() & self._held.keys(), t, Ending.LOST)
        for partition, offset in offsets.items():
            if partition in self._held:  # a repeated start leaves the partition unchanged
                continue
            ownership = Ownership(journal.group, partition, journal.consumer, journal.path, journal.pid, t, offset)
            ownership.stock, ownership.eager = self._stock, "eager" in journal.kind.split(", ")
            self._held[partition] = ownership
            self._life.ownerships.append(ownership)

    def _end(self, partitions: Iterable[TopicPartition], t: float, ending: Ending) -> None:
        for partition in partitions:
            ownership = self._held.pop(partition, None)
            if ownership is not None:
                ownership.end, ownership.ending = t, ending
                self._before[partition] = ownership

    def _lost(self, t: float, partitions: frozenset[TopicPartition]) -> None:
        self._life.losses.append((t, partitions))
        for partition, ownership in self._before.items():
            # The membership ended between the stop and the next start, so the stop may be unacknowledged.
            if ownership.ending is Ending.STOPPED and partition not in self._held:
                ownership.lost_after_stop = True
        self._end(list(self._held), t, Ending.LOST)

    def _handed(self, since: float, t: float, run: Stretch) -> None:
        hand_out = HandOut(since, t, run.first, run.end, run.number)
        held, before = self._held.get(run.partition), self._before.get(run.partition)
        if held is not None:
            late = (
                before is not None
                and before.ending is Ending.LOST
                and since < before.end
                and held.position != run.first == before.position
            )
            (before if late and before is not None else held).handed.append(hand_out)
        elif before is not None and before.ending is Ending.LOST and since < before.end:
            before.handed.append(hand_out)  # the application had them in hand when the connector noticed the loss
        elif before is not None:
            before.stray.append(hand_out)
        else:
            journal = self._life.journal
            self._life.misplaced.append(
                Misplaced(journal.consumer, journal.group, journal.path, run.partition, hand_out)
            )

    def _asked(self, offsets: Mapping[TopicPartition, int]) -> None:
        for partition, offset in offsets.items():
            ownership = self._held.get(partition) or self._before.get(partition)
            if ownership is not None:
                ownership.asked.add(offset)

    def _committed(self, t: float, offsets: Mapping[TopicPartition, int]) -> None:
        for partition, offset in offsets.items():
            ownership = self._held.get(partition) or self._before.get(partition)
            if ownership is not None:
                ownership.commits.append((t, offset))
