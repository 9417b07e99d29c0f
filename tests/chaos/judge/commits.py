"""The rule about commits of stock clients: an acknowledged commit is never lost, and never goes back. After the
acknowledgement, a reader of the partition's offset must receive that offset or a greater one. It may receive a smaller
one only if a client committed the smaller one later.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kafka_coord.model import TopicPartition
from tests.chaos.journal import (
    Committed,
    Committing,
    ConsumerJournal,
    Handed,
    Started,
    read_consumers,
    read_offsets,
)
from tests.chaos.judge.evidence import Records
from tests.chaos.judge.findings import ChaosFinding, Rule, Ruling, Severity, ruling

Where = tuple[str, TopicPartition]
"""A group and a partition."""


class Attempt(NamedTuple):
    """A commit, asked for at ``sent`` or later. ``acknowledged`` is infinite if no acknowledgement arrived. The client
    reports automatic commits only when they are acknowledged. An unreported one may have had any offset from ``low`` to
    ``high``.
    """

    sent: float
    acknowledged: float
    low: int
    high: int
    process: str


class Reading(NamedTuple):
    """One reading: asked at ``since``, answered ``offset`` at ``t``. None: the answer was that there is no offset."""

    since: float
    t: float
    offset: int | None
    who: str


def commits(records: Records) -> Ruling:
    """Checks that no reading is older than the last commit that was acknowledged before the request."""
    attempts: dict[Where, list[Attempt]] = {}
    readings: dict[Where, list[Reading]] = {}
    for journal in read_consumers(records.directory):
        for where, attempt in _attempts(journal):
            attempts.setdefault(where, []).append(attempt)
        for where, reading in _beginnings(journal):
            readings.setdefault(where, []).append(reading)
    for where, reading in _looks(records.directory, attempts):
        readings.setdefault(where, []).append(reading)
    findings = [
        finding
        for where, found in sorted(readings.items())
        for finding in _judged(records, where, sorted(attempts.get(where, ())), sorted(found, key=lambda one: one.t))
    ]
    acknowledged = sum(one.acknowledged < float("inf") for found in attempts.values() for one in found)
    judged = sum(len(found) for found in readings.values())
    return ruling(
        Rule.COMMITS,
        findings,
        checked=f"{acknowledged:,} acknowledged commits of a partition, {judged:,} readings of one",
        exercised=acknowledged > 0 and judged > 0,
        figures={"acknowledged": acknowledged, "readings": judged},
    )


def _judged(records: Records, where: Where, attempts: list[Attempt], readings: list[Reading]) -> Iterator[ChaosFinding]:
    """``attempts`` are in the order of sending. They took effect in that order, because only one member may commit a
    partition at a time.
    """
    for reading in readings:
        at = max((n for n, one in enumerate(attempts) if one.acknowledged < reading.since), default=None)
        if at is None:
            continue
        last = attempts[at]
        told = -1 if reading.offset is None else reading.offset
        if told >= last.low or any(
            one.low <= told <= one.high for one in attempts if one.sent >= last.sent and one.sent < reading.t
        ):
            continue
        group, partition = where
        yield ChaosFinding(
            Rule.COMMITS,
            Severity.VIOLATION,
            f"group {group} {partition}",
            f"{reading.who} was told {reading.offset}, although {last.low} had been acknowledged "
            f"{reading.since - last.acknowledged:.3f} s before it asked",
            (
                records.at(last.sent, f"{last.process}: commits {last.low}"),
                records.at(last.acknowledged, f"{last.process}: acknowledged {last.low}"),
                records.at(reading.since, f"{reading.who}: asks"),
                records.at(reading.t, f"{reading.who}: is told {reading.offset}"),
            ),
        )


def _attempts(journal: ConsumerJournal) -> Iterator[tuple[Where, Attempt]]:
    """The commits that one process requested, by its own file."""
    asked: dict[TopicPartition, tuple[float, int]] = {}
    manual = any(isinstance(line, Committing) for line in journal.lines)
    since: dict[TopicPartition, float] = {}
    for line in journal.lines:
        match line:
            case Started(t, offsets):
                since |= dict.fromkeys(offsets, t)
            case Handed(_, begun, runs) if not manual:
                for run in runs:
                    attempt = Attempt(begun, float("inf"), run.first, run.end, journal.path)
                    yield (journal.group, run.partition), attempt
            case Committing(t, offsets):
                for partition, (sent, offset) in asked.items():
                    yield (journal.group, partition), Attempt(sent, float("inf"), offset, offset, journal.path)
                asked = {partition: (t, offset) for partition, offset in offsets.items()}
            case Committed(t, offsets):
                for partition, offset in offsets.items():
                    sent, _ = asked.pop(partition, (since.get(partition, t), offset))
                    since[partition] = t
                    yield (journal.group, partition), Attempt(sent, t, offset, offset, journal.path)
            case _:
                pass
    for partition, (sent, offset) in asked.items():
        yield (journal.group, partition), Attempt(sent, float("inf"), offset, offset, journal.path)


def _beginnings(journal: ConsumerJournal) -> Iterator[tuple[Where, Reading]]:
    for line in journal.lines:
        if isinstance(line, Started) and line.since is not None:
            for partition, offset in line.offsets.items():
                yield (journal.group, partition), Reading(line.since, line.t, offset, journal.path)


def _looks(directory: Path, attempts: dict[Where, list[Attempt]]) -> Iterator[tuple[Where, Reading]]:
    """An observer reads all existing offsets, so a partition that is absent has none."""
    for look in read_offsets(directory):
        for group, partition in attempts:
            if group == look.group:
                yield (group, partition), Reading(look.since, look.t, look.offsets.get(partition), "an onlooker")
