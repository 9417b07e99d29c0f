"""The commits that stock clients requested, according to their own files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kafka_coord.model import TopicPartition
from tests.chaos.journal import Committed, Committing, ConsumerJournal, Handed, Started

NEVER = float("inf")
_MOST_AT_ONCE = 1_000
"""No call hands out more records than this."""


class Attempt(NamedTuple):
    """A commit of one partition, requested at ``sent`` or later, by an owner that got the partition at ``held``.

    ``acknowledged`` is :data:`NEVER` if no acknowledgement arrived. A client reports an automatic commit only after its
    acknowledgement. An unreported commit may have had any offset from ``low`` to ``high``.
    """

    sent: float
    acknowledged: float
    low: int
    high: int
    process: str
    held: float


def attempts_of(journal: ConsumerJournal) -> Iterator[tuple[TopicPartition, Attempt]]:
    """Yields the commits that this process requested."""
    return _requested(journal) if any(isinstance(one, Committing) for one in journal.lines) else _automatic(journal)


def _requested(journal: ConsumerJournal) -> Iterator[tuple[TopicPartition, Attempt]]:
    asked: dict[TopicPartition, Attempt] = {}
    held: dict[TopicPartition, float] = {}
    for line in journal.lines:
        match line:
            case Started(t, offsets):
                held |= dict.fromkeys(offsets, t)
            case Committing(t, offsets):
                yield from asked.items()
                asked = {
                    partition: Attempt(t, NEVER, offset, offset, journal.path, held.get(partition, t))
                    for partition, offset in offsets.items()
                }
            case Committed(t, offsets):
                for partition, offset in offsets.items():
                    attempt = asked.pop(partition, Attempt(t, t, offset, offset, journal.path, held.get(partition, t)))
                    yield partition, attempt._replace(acknowledged=t)
            case _:
                pass
    yield from asked.items()


def _automatic(journal: ConsumerJournal) -> Iterator[tuple[TopicPartition, Attempt]]:
    """Yields automatic commits. A commit is sent no earlier than the hand-out of its last record."""
    held: dict[TopicPartition, float] = {}
    handed: dict[TopicPartition, list[Attempt]] = {}
    for line in journal.lines:
        match line:
            case Started(t, offsets):
                held |= dict.fromkeys(offsets, t)
                for partition in offsets:
                    handed.pop(partition, None)
            case Handed(_, since, runs):
                for run in runs:
                    begun = held.get(run.partition, since)
                    attempt = Attempt(since, NEVER, run.first + 1, run.end, journal.path, begun)
                    handed.setdefault(run.partition, []).append(attempt)
                    yield run.partition, attempt
            case Committed(t, offsets):
                for partition, offset in offsets.items():
                    begun = held.get(partition, t)
                    sent = next((one.sent for one in handed.get(partition, ()) if one.low <= offset <= one.high), begun)
                    yield partition, Attempt(sent, t, offset, offset, journal.path, begun)
            case _:
                pass
    if not journal.closed:  # killed, perhaps after it handed out records but before it wrote the line
        for partition, known in handed.items():
            last = known[-1]
            yield partition, last._replace(low=last.high, high=last.high + _MOST_AT_ONCE)
