"""Records as ranges of offsets, and the file of the acknowledged records."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kafka_coord.dev.json_lines import Appending, read_lines
from kafka_coord.model import TopicPartition

PRODUCED = "produced.jsonl"


class Stretch(NamedTuple):
    """``size`` records of one partition, with offsets ``first``, ``first + 1``, … and numbers ``number``,
    ``number + 1``, …"""

    partition: TopicPartition
    first: int
    size: int
    number: int

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.first + self.size


def stretches(records: Iterable[tuple[str, int, int, int]]) -> list[Stretch]:
    """Combines consecutive records into stretches. Records are (topic, partition, offset, number), in order within each
    partition."""
    open_: dict[tuple[str, int], list[int]] = {}
    found: list[Stretch] = []
    for topic, partition, offset, number in records:
        key = (topic, partition)
        run = open_.get(key)
        if run is not None and run[0] + run[1] == offset and run[2] + run[1] == number:
            run[1] += 1
            continue
        if run is not None:
            found.append(Stretch(TopicPartition(*key), *run))
        open_[key] = [offset, 1, number]
    found += (Stretch(TopicPartition(*key), *run) for key, run in open_.items())
    return found


class ProducedWriter(Appending):
    """Appends acknowledged records to ``produced.jsonl``. Numbers within each partition keep it small."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / PRODUCED)

    def acknowledged(self, records: Iterable[tuple[str, int, int, int]]) -> None:
        """``records`` are (topic, partition, offset, number), in order within each partition. Call it about once a
        second."""
        runs = stretches(records)
        if runs:
            self.append({"t": time.monotonic(), "r": plain(runs)})


class Produced(NamedTuple):
    """The records that were acknowledged between the previous line and ``t``."""

    t: float
    runs: tuple[Stretch, ...]


def read_produced(directory: Path) -> tuple[Produced, ...]:
    return tuple(read_lines(directory / PRODUCED, lambda value: Produced(value["t"], stretches_of(value["r"]))))


def plain(runs: Iterable[Stretch]) -> list[list[Any]]:
    return [[*run.partition, run.first, run.size, run.number] for run in runs]


def stretches_of(written: Iterable[Any]) -> tuple[Stretch, ...]:
    return tuple([Stretch(_partition(topic, p), first, size, number) for topic, p, first, size, number in written])


@cache
def _partition(topic: str, partition: int) -> TopicPartition:
    """Returns the same object for equal values, to save memory: a long run has a million hand-outs."""
    return TopicPartition(topic, partition)
