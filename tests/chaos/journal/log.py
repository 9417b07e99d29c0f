"""The records of the groups log in order, as a reader received them during the run."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from kafka_coord.dev.json_lines import Appending, read_lines
from kafka_coord.model import TopicPartition

LOG = "log.jsonl"


class LogPlace(NamedTuple):
    """A partition of the groups log, and an offset in it."""

    partition: int
    offset: int


class Appended(NamedTuple):
    """A partition's commit in the groups log. None removes the offset."""

    group: str
    partition: TopicPartition
    offset: int | None
    at_ms: int = 0
    """When it was appended, by the record's timestamp, if a run has two logs."""


class LogRead(NamedTuple):
    """A record was received at ``t``. ``commit`` is None for a record that is no commit."""

    t: float
    place: LogPlace
    commit: Appended | None


class LogWriter(Appending):
    """Appends to ``log.jsonl``."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / LOG)

    def read(self, records: Iterable[tuple[LogPlace, Appended | None]]) -> None:
        """Writes records that were received just now."""
        rows = [
            [*place, [commit.group, *commit.partition, *commit[2:]] if commit else None] for place, commit in records
        ]
        if rows:
            self.append({"t": time.monotonic(), "r": rows})


def read_log(directory: Path) -> tuple[LogRead, ...]:
    """Returns all records, those of each partition in the order of the log."""
    found: dict[LogPlace, LogRead] = {}
    for t, rows in read_lines(directory / LOG, lambda value: (value["t"], value["r"])):
        for partition, offset, commit in rows:
            place = LogPlace(partition, offset)
            appended = Appended(commit[0], TopicPartition(*commit[1:3]), *commit[3:]) if commit else None
            found.setdefault(place, LogRead(t, place, appended))
    return tuple(found[place] for place in sorted(found))
