"""The journal of one of the demo's consumers. Each event appends a line with a JSON object.

The consumer writes a line about records after it has processed them, but before it requests more, which is what marks
them as consumed. So every committed record is in a journal, even if the process is killed. A killed process may leave
an incomplete line, but the records of that line were never committed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from kafka_coord.dev.json_lines import Appending, read_lines
from kafka_coord.model import PartitionSet, TopicPartition

Offsets = Mapping[TopicPartition, int]


def now_ms() -> int:
    """Returns the current time in ms since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive records of one partition from offset ``first`` on, with their airlines and arrival delays in minutes.
    A delay is None if the flight was cancelled or diverted. ``at_ms`` is when the consumer finished processing them,
    in ms since 1970.
    """

    at_ms: int
    partition: TopicPartition
    first: int
    airlines: tuple[str, ...]
    delays: tuple[int | None, ...]

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.first + len(self.airlines)


class Change(StrEnum):
    """The kinds of changes to a consumer's partitions."""

    STARTED = "started"
    STOPPED = "stopped"
    LOST = "lost"
    """The partitions were lost with the membership, without a stop."""


@dataclass(frozen=True, slots=True)
class Handed:
    """The application received a start-fetcher or stop-fetcher command."""

    at_ms: int
    change: Change
    partitions: PartitionSet


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A commit was acknowledged, so the group continues at these offsets or later ones."""

    at_ms: int
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class Journal:
    """The whole journal of one consumer. Only stock clients record their acknowledged commits."""

    consumer: str
    runs: tuple[Run, ...] = ()
    handed: tuple[Handed, ...] = ()
    commits: tuple[Acknowledged, ...] = ()


@dataclass(frozen=True, slots=True)
class Killing:
    """A consumer was killed at ``at_ms`` (ms since 1970). ``committed`` holds the offsets it had committed by then."""

    consumer: str
    at_ms: int
    committed: Offsets


class JournalWriter(Appending):
    """Writes the journal of one consumer."""

    def handed(self, at_ms: int, change: Change, partitions: PartitionSet) -> None:
        self.append({"at_ms": at_ms, "event": str(change), "partitions": partitions.to_json()})

    def committed(self, at_ms: int, offsets: Offsets) -> None:
        written = [[*partition, offset] for partition, offset in offsets.items()]
        self.append({"at_ms": at_ms, "event": "committed", "offsets": written})

    def records(self, at_ms: int, runs: Sequence[Run]) -> None:
        """Writes all runs on one line, with a single ``at_ms``."""
        written = [[*run.partition, run.first, list(run.airlines), list(run.delays)] for run in runs]
        self.append({"at_ms": at_ms, "event": "records", "runs": written})


def read_journal(path: Path, consumer: str) -> Journal:
    """Reads the journal of ``consumer``. Ignores an incomplete last line, and treats a missing file as an empty
    journal. For any other fault, raises :class:`~kafka_coord.errors.MalformedValue` with the line.
    """
    runs: list[Run] = []
    handed: list[Handed] = []
    commits: list[Acknowledged] = []

    def read(value: Mapping[str, Any]) -> None:
        at_ms, event = int(value["at_ms"]), value["event"]
        if event == "records":
            runs.extend(_run(at_ms, written) for written in value["runs"])
        elif event == "committed":
            offsets = {TopicPartition(str(t), int(p)): int(offset) for t, p, offset in value["offsets"]}
            commits.append(Acknowledged(at_ms, offsets))
        else:
            partitions = PartitionSet.from_json(value["partitions"], "partitions")
            handed.append(Handed(at_ms, Change(event), partitions))

    read_lines(path, read)
    return Journal(consumer, tuple(runs), tuple(handed), tuple(commits))


def _run(at_ms: int, written: Sequence[Any]) -> Run:
    topic, partition, first, airlines, delays = written
    if len(airlines) != len(delays):
        raise ValueError(f"{len(airlines)} airlines for {len(delays)} delays")
    return Run(at_ms, TopicPartition(str(topic), int(partition)), int(first), tuple(airlines), tuple(delays))
