"""Reads all files of a run into the form that the rules need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from kafka_coord.model import TopicPartition
from tests.chaos.journal import (
    ConsumerJournal,
    Event,
    Group,
    Kind,
    Phase,
    Run,
    Stretch,
    Usage,
    read_consumer,
    read_events,
    read_produced,
    read_resources,
    read_run,
)
from tests.chaos.journal.consumers import CONSUMERS
from tests.chaos.judge.faults import Faults, faults_of
from tests.chaos.judge.findings import Evidence
from tests.chaos.judge.ownership import Life, Ownership, life_of

AFTERMATH_S = 15.0
"""How long after its end a fault may still leave partitions without owners, in seconds beyond the longest session
timeout. By then, ZooKeeper has a leader, broken sessions have ended, and the partitions have new owners.
"""


class Span(NamedTuple):
    """The offsets ``first`` to ``end - 1``."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Book:
    """The owners of one partition in one group, in order."""

    group: str
    partition: TopicPartition
    ownerships: tuple[Ownership, ...]

    @property
    def where(self) -> str:
        return f"group {self.group} {self.partition}"


class Records:
    """The contents of a run's directory. ``until`` is the end of the judged time (monotonic seconds). ``spark`` has the
    names of the consumers that are Spark queries.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.run: Run = read_run(directory)
        self.spark = frozenset(one.name for one in self.run.consumers if one.kind.startswith("spark"))
        self.events: tuple[Event, ...] = read_events(directory)
        self.resources: tuple[Usage, ...] = read_resources(directory)
        self.until = max(
            [event.t for event in self.events if event.kind == Kind.ENDED]
            or [event.t for event in self.events]
            or [self.run.started]
        )
        session_s = max(self.run.setup.session_timeouts_ms.values(), default=0) / 1000
        self.faults = Faults(faults_of(self.events, self.until), session_s + AFTERMATH_S)
        self._killed = {
            (event.name, int(event.detail["pid"])): event.t
            for event in self.events
            if event.kind == Kind.KILL and event.role == "consumer" and event.detail.get("pid")
        }
        self.lives: tuple[Life, ...] = tuple(sorted(self._lives(), key=lambda life: life.journal.lines[0].t))
        self.journals: tuple[ConsumerJournal, ...] = tuple(life.journal for life in self.lives)
        self.books: tuple[Book, ...] = _books(self.lives)
        self.written = _written(directory)
        self.produced = {
            partition: merged(Span(run.first, run.end) for run in runs) for partition, runs in self.written.items()
        }

    def _lives(self) -> Iterator[Life]:
        """Reads one file after another, and keeps only the first and last line of each."""
        for path in sorted((self.directory / CONSUMERS).glob("*.jsonl")):
            journal = read_consumer(path)
            if journal is not None:
                killed_at = self._killed.get((journal.consumer, journal.pid))
                life = life_of(journal, killed_at, self.until, stock=journal.stock or self.run.clients == "kafka")
                life.journal = replace(journal, lines=(journal.lines[0], journal.lines[-1]))
                yield life

    def at(self, t: float, what: str) -> Evidence:
        """Returns evidence of that moment (monotonic seconds)."""
        return Evidence(t - self.run.started, what)

    def start_of(self, owner: Ownership) -> Evidence:
        return self.at(owner.begin, f"{owner.process}: started at {owner.offset}")

    def of(self, *kinds: str, phase: Phase | None = None) -> tuple[Event, ...]:
        """Returns the events of these kinds, in order."""
        return tuple(event for event in self.events if event.kind in kinds and phase in {None, event.phase})

    def killed(self, journal: ConsumerJournal) -> bool:
        """Tells whether the consumer's process was killed."""
        return (journal.consumer, journal.pid) in self._killed

    def subscribed(self, group: Group) -> tuple[TopicPartition, ...]:
        """Returns the partitions with records that this group reads."""
        if group.pattern is not None:
            pattern = re.compile(group.pattern)
            return tuple(tp for tp in self.produced if pattern.fullmatch(tp.topic))
        return tuple(tp for tp in self.produced if tp.topic in group.topics)


def merged(spans: Iterable[Span]) -> list[Span]:
    """Combines spans into the fewest spans, in order."""
    found: list[Span] = []
    for span in sorted(spans):
        if found and span.first <= found[-1].end:
            found[-1] = Span(found[-1].first, max(found[-1].end, span.end))
        else:
            found.append(span)
    return found


def without(spans: Iterable[Span], taken: Iterable[Span]) -> Iterator[Span]:
    """Yields the parts of ``spans`` that are not in ``taken``. Both are in order and do not overlap."""
    gone = list(taken)
    for first, end in spans:
        at = first
        for other in gone:
            if other.end <= at:
                continue
            if other.first >= end:
                break
            if other.first > at:
                yield Span(at, other.first)
            at = max(at, other.end)
        if at < end:
            yield Span(at, end)


def _written(directory: Path) -> dict[TopicPartition, list[Stretch]]:
    """Reads the acknowledged records, as few ranges of offsets."""
    found: dict[TopicPartition, list[Stretch]] = {}
    runs: Iterator[Stretch] = (run for line in read_produced(directory) for run in line.runs)
    for run in runs:
        known = found.setdefault(run.partition, [])
        last = known[-1] if known else None
        if last is not None and last.end == run.first and last.number + last.size == run.number:
            known[-1] = last._replace(size=last.size + run.size)
        else:
            known.append(run)
    return {partition: sorted(runs, key=lambda run: run.first) for partition, runs in sorted(found.items())}


def _books(lives: Iterable[Life]) -> tuple[Book, ...]:
    held: dict[tuple[str, TopicPartition], list[Ownership]] = {}
    for life in lives:
        for ownership in life.ownerships:
            held.setdefault((ownership.group, ownership.partition), []).append(ownership)
    return tuple(
        Book(group, partition, tuple(sorted(found, key=lambda one: one.begin)))
        for (group, partition), found in sorted(held.items())
    )
