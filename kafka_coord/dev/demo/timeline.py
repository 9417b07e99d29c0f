"""Assembles the timeline of a run from journals, samples and events. Pure. All times are in ms since 1970."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from kafka_coord.dev.demo.journal import Change, Handed, Journal, Killing
from kafka_coord.model import Decision, PartitionSet, TopicPartition


class EventKind(StrEnum):
    STARTED = "started"
    JOINED = "joined"
    KILLED = "killed"
    COORDINATOR_KILLED = "coordinator killed"
    COORDINATOR_ELECTED = "coordinator elected"
    LEADERSHIP_MOVED = "leadership moved"
    PARTITIONS_ADDED = "partitions added"
    LEFT = "left"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the demo or the system did, as a sentence."""

    at_ms: int
    kind: EventKind
    text: str


@dataclass(frozen=True, slots=True)
class Sample:
    """The group at one moment, read between ``asked_ms`` and ``at_ms``: each partition's committed offset, end offset
    and owner, and how many commands are outstanding for each consumer."""

    at_ms: int
    committed: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    owners: Mapping[TopicPartition, str] = field(default_factory=dict)
    pending: Mapping[str, int] = field(default_factory=dict)
    asked_ms: int | None = None

    def lag(self, partition: TopicPartition) -> int:
        """The number of records of the partition that are not committed yet."""
        return max(0, self.ends.get(partition, 0) - self.committed.get(partition, 0))

    @property
    def total_lag(self) -> int:
        return sum(map(self.lag, self.ends))


class Ending(StrEnum):
    """How a consumer's hold on a partition ended."""

    STOPPED = "stopped"
    LOST = "lost"
    KILLED = "killed"
    OPEN = "still owned"


@dataclass(frozen=True, slots=True)
class Span:
    """A consumer's hold on a partition, from start-fetcher to stop-fetcher, with the number of records that it consumed
    meanwhile.
    """

    partition: TopicPartition
    consumer: str
    from_ms: int
    to_ms: int
    ending: Ending
    records: int = 0


@dataclass(frozen=True, slots=True)
class Reign:
    """A coordinator's term, from its election to its end. ``broker_id`` is the id of the broker beside it."""

    broker_id: int
    epoch: int
    from_ms: int
    to_ms: int


@dataclass(frozen=True, slots=True)
class Handover:
    """The handover of a partition: how long it had no owner, and whether its old owner was killed."""

    partition: TopicPartition
    at_ms: int
    gap_ms: int
    after_killing: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """The whole run. ``rates`` are records per ``rate_bucket_ms`` since ``from_ms``, by consumer."""

    from_ms: int
    to_ms: int
    consumers: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]
    events: tuple[Event, ...]
    spans: tuple[Span, ...]
    reigns: tuple[Reign, ...]
    samples: tuple[Sample, ...]
    decisions: tuple[Decision, ...]
    rates: Mapping[str, tuple[int, ...]]
    rate_bucket_ms: int = 1_000

    @property
    def duration_ms(self) -> int:
        return max(1, self.to_ms - self.from_ms)

    def seconds(self, at_ms: int) -> float:
        return (at_ms - self.from_ms) / 1000


def assemble(
    journals: Sequence[Journal],
    killings: Sequence[Killing],
    events: Iterable[Event],
    samples: Iterable[Sample],
    decisions: Iterable[Decision],
    reigns: Iterable[Reign],
) -> Timeline:
    """Assembles the timeline of one run, from the first event to the last."""
    happened = tuple(sorted(events, key=lambda event: event.at_ms))
    known = tuple(sorted(samples, key=lambda sample: sample.at_ms))
    times = [event.at_ms for event in happened] + [run.at_ms for journal in journals for run in journal.runs[-1:]]
    from_ms, to_ms = min(times, default=0), max(times, default=0)
    spans = spans_of(journals, killings, to_ms)
    partitions = {span.partition for span in spans} | {tp for sample in known for tp in sample.ends}
    return Timeline(
        from_ms=from_ms,
        to_ms=to_ms,
        consumers=tuple(journal.consumer for journal in journals),
        partitions=tuple(sorted(partitions)),
        events=happened,
        spans=spans,
        reigns=tuple(reigns),
        samples=known,
        decisions=tuple(decisions),
        rates=rates_of(journals, from_ms, to_ms, 1_000),
    )


def spans_of(journals: Sequence[Journal], killings: Sequence[Killing], until_ms: int) -> tuple[Span, ...]:
    """Returns all spans of ownership. Killing a consumer ends its spans. Spans that are still open end at
    ``until_ms``."""
    killed = {killing.consumer: killing.at_ms for killing in killings}
    spans: list[Span] = []
    for journal in journals:
        since: dict[TopicPartition, int] = {}
        consumer, ended_ms = journal.consumer, killed.get(journal.consumer, until_ms)
        counted = _Counted(journal)
        for handed in journal.handed:
            for partition in handed.partitions:
                if handed.change is Change.STARTED:
                    since.setdefault(partition, handed.at_ms)
                elif partition in since:
                    ending = Ending(str(handed.change))
                    spans.append(counted.span(consumer, partition, since.pop(partition), handed.at_ms, ending))
        left = Ending.KILLED if consumer in killed else Ending.OPEN
        spans += (counted.span(consumer, tp, from_ms, max(from_ms, ended_ms), left) for tp, from_ms in since.items())
    return tuple(sorted(spans, key=lambda span: (span.partition, span.from_ms)))


def with_seen_changes(journal: Journal, samples: Iterable[Sample]) -> Journal:
    """Completes the journal of a Spark query, which cannot record its partitions, with the spans that the samples show.
    A span is never longer than the real one. Any other journal is returned unchanged.
    """
    if journal.handed:
        return journal
    handed: list[Handed] = []
    held: frozenset[TopicPartition] = frozenset()
    before_ms = 0
    for sample in samples:
        owned = frozenset(partition for partition, owner in sample.owners.items() if owner == journal.consumer)
        if stopped := held - owned:
            handed.append(Handed(before_ms, Change.STOPPED, PartitionSet.of(stopped)))
        if started := owned - held:
            handed.append(Handed(sample.at_ms, Change.STARTED, PartitionSet.of(started)))
        held, before_ms = owned, sample.at_ms if sample.asked_ms is None else sample.asked_ms
    return replace(journal, handed=tuple(handed))


class _Counted:
    """Counts the records of one journal by partition and time."""

    def __init__(self, journal: Journal) -> None:
        self._runs: dict[TopicPartition, list[tuple[int, int]]] = {}
        for run in journal.runs:
            self._runs.setdefault(run.partition, []).append((run.at_ms, len(run.airlines)))

    def span(self, consumer: str, partition: TopicPartition, from_ms: int, to_ms: int, ending: Ending) -> Span:
        # The consumer writes a batch shortly after its last record, perhaps just after the stop.
        records = sum(count for at_ms, count in self._runs.get(partition, ()) if from_ms <= at_ms <= to_ms)
        return Span(partition, consumer, from_ms, to_ms, ending, records)


def handovers_of(spans: Iterable[Span]) -> tuple[Handover, ...]:
    """Returns each change of owner. A stop and restart by the same consumer also counts."""
    handovers = []
    last: dict[TopicPartition, Span] = {}
    for span in sorted(spans, key=lambda span: (span.partition, span.from_ms)):
        before = last.get(span.partition)
        if before is not None:
            gap_ms = span.from_ms - before.to_ms
            handovers.append(Handover(span.partition, span.from_ms, gap_ms, before.ending is Ending.KILLED))
        last[span.partition] = span
    return tuple(handovers)


def overlaps_of(spans: Iterable[Span]) -> tuple[str, ...]:
    """Describes any partitions that two consumers held at once. There must be none."""
    found = []
    last: dict[TopicPartition, Span] = {}
    for span in sorted(spans, key=lambda span: (span.partition, span.from_ms)):
        before = last.get(span.partition)
        if before is not None and span.from_ms < before.to_ms:
            found.append(f"{span.partition}: {before.consumer} and {span.consumer}, {before.to_ms - span.from_ms} ms")
        if before is None or span.to_ms > before.to_ms:
            last[span.partition] = span
    return tuple(found)


def rates_of(journals: Sequence[Journal], from_ms: int, to_ms: int, bucket_ms: int) -> dict[str, tuple[int, ...]]:
    buckets = max(1, -(-(to_ms - from_ms) // bucket_ms))
    rates = {}
    for journal in journals:
        counts: Counter[int] = Counter()
        for run in journal.runs:
            counts[min(max(0, (run.at_ms - from_ms) // bucket_ms), buckets - 1)] += len(run.airlines)
        rates[journal.consumer] = tuple(counts[bucket] for bucket in range(buckets))
    return rates


def consumed_between(journals: Iterable[Journal], from_ms: int, to_ms: int) -> int:
    """Returns the number of records that the group processed in a period."""
    return sum(len(run.airlines) for journal in journals for run in journal.runs if from_ms < run.at_ms <= to_ms)


def median_gap_ms(handovers: Iterable[Handover], *, after_killing: bool) -> int | None:
    """Returns the median time without an owner in ms, or None if there was no such handover."""
    gaps = [handover.gap_ms for handover in handovers if handover.after_killing is after_killing]
    return round(statistics.median(gaps)) if gaps else None
