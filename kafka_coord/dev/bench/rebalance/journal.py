"""Writes and reads the journals of a benchmark's members."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kafka_coord.model import PartitionSet


class What(StrEnum):
    """The events of a member and its partitions."""

    JOINING = "joining"
    """The member is about to register."""
    LEAVING = "leaving"
    """The member is about to leave."""
    STARTED = "started"
    """The member begins to fetch the partitions."""
    STOPPED = "stopped"
    """The member will not deliver any more records of the partitions."""
    ACKNOWLEDGED = "acknowledged"
    """The acknowledgement of a command, with the offsets of these partitions, has been stored."""


@dataclass(frozen=True, slots=True)
class Line:
    """``at_ns`` is a time of ``CLOCK_MONOTONIC``, which all processes of a machine share."""

    at_ns: int
    consumer: str
    what: What
    partitions: PartitionSet

    def encoded(self) -> bytes:
        value = [self.at_ns, self.consumer, str(self.what), self.partitions.to_json()]
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def decoded(cls, raw: bytes) -> Line:
        at_ns, consumer, what, partitions = json.loads(raw)
        return cls(at_ns, consumer, What(what), PartitionSet.from_json(partitions, "journal"))


class Journals:
    """Reads the journals of all processes in a directory. Each call continues where the previous call ended."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}

    def new_lines(self) -> list[Line]:
        """Returns the lines since the last call, sorted by time, without the incomplete last line of a killed
        process."""
        return sorted(self._lines(), key=lambda line: line.at_ns)

    def _lines(self) -> Iterator[Line]:
        for path in sorted(self._directory.glob("*.journal")):
            raw = path.read_bytes()[self._read.get(path, 0) :]
            whole = raw[: raw.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            yield from map(Line.decoded, whole.splitlines())
