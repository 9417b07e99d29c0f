"""Sets of offset ranges, with set operations, and the key that identifies a batch. All functions are pure.

A :class:`PlannedBatch` is the offset that Spark stores. It contains the ranges of a micro-batch, so that they can be
read again even after partitions have moved.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kafka_coord.errors import MalformedValue
from kafka_coord.model import TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.model.codec import nested
from kafka_coord.model.names import is_legal

MAX_OFFSET = (1 << 63) - 1


class OffsetRange(NamedTuple):
    """The offsets ``start`` to ``end - 1``."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets. Because of compaction or transactions, there might be no record at some of them."""
        return self.end - self.start


class OffsetRanges:
    """An immutable set of offsets in any number of partitions. Each partition's offsets are stored as the fewest
    possible ranges, sorted."""

    __slots__ = ("_ranges",)

    def __init__(self, ranges: Mapping[TopicPartition, Iterable[tuple[int, int]]] | None = None) -> None:
        kept = {tp: _merged(found) for tp, found in (ranges or {}).items()}
        self._ranges: dict[TopicPartition, tuple[OffsetRange, ...]] = {tp: r for tp, r in sorted(kept.items()) if r}

    @classmethod
    def of(cls, rows: Iterable[tuple[str, int, int, int]]) -> OffsetRanges:
        """Creates a set from rows of (topic, partition, start, end), where ``end`` is the offset after the last."""
        found: dict[TopicPartition, list[tuple[int, int]]] = {}
        for topic, partition, start, end in rows:
            found.setdefault(TopicPartition(topic, partition), []).append((start, end))
        return cls(found)

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions with at least one offset in the set, sorted."""
        return tuple(self._ranges)

    def of_partition(self, partition: TopicPartition) -> tuple[OffsetRange, ...]:
        """Returns the ranges of one partition, sorted, with gaps between them. The result may be empty."""
        return self._ranges.get(partition, ())

    def rows(self) -> Iterator[tuple[str, int, int, int]]:
        """Yields (topic, partition, start, end), sorted. This is the inverse of :meth:`of`."""
        return ((tp.topic, tp.partition, r.start, r.end) for tp, found in self._ranges.items() for r in found)

    @property
    def size(self) -> int:
        """The total number of offsets."""
        return sum(r.size for found in self._ranges.values() for r in found)

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetRanges) and self._ranges == other._ranges

    def __hash__(self) -> int:
        return hash(tuple(self._ranges.items()))

    def __contains__(self, record: tuple[str, int, int]) -> bool:
        topic, partition, offset = record
        return any(r.start <= offset < r.end for r in self.of_partition(TopicPartition(topic, partition)))

    def __or__(self, other: OffsetRanges) -> OffsetRanges:
        return OffsetRanges(
            {tp: (*self.of_partition(tp), *other.of_partition(tp)) for tp in self._ranges.keys() | other._ranges.keys()}
        )

    def __and__(self, other: OffsetRanges) -> OffsetRanges:
        return OffsetRanges(
            {
                tp: [
                    (max(a.start, b.start), min(a.end, b.end))
                    for a in found
                    for b in other.of_partition(tp)
                    if a.start < b.end and b.start < a.end
                ]
                for tp, found in self._ranges.items()
            }
        )

    def __sub__(self, other: OffsetRanges) -> OffsetRanges:
        return OffsetRanges({tp: _without(found, other.of_partition(tp)) for tp, found in self._ranges.items()})

    def key(self, group: str) -> str:
        """Returns a stable name for exactly this set of offsets of ``group``: 32 hex digits, which can serve as a file
        name or a primary key."""
        written = json.dumps([group, *self.rows()], separators=(",", ":"))
        return hashlib.sha256(written.encode()).hexdigest()[:32]

    def __str__(self) -> str:
        """Returns text such as ``flights-0[0,500) flights-1[0,20)[40,50)``, or ``nothing``."""
        return (
            " ".join(f"{tp}{''.join(f'[{r.start},{r.end})' for r in found)}" for tp, found in self._ranges.items())
            or "nothing"
        )

    def __repr__(self) -> str:
        return f"OffsetRanges({self})"

    def to_json(self) -> dict[str, dict[str, list[list[int]]]]:
        """Returns an object such as ``{"flights": {"0": [[0, 500]]}}``."""
        return nested({tp: [list(r) for r in ranges] for tp, ranges in self._ranges.items()})

    @classmethod
    def from_json(cls, value: Any, where: str) -> OffsetRanges:
        """Reads the value strictly. Raises :class:`MalformedValue`."""
        parsed: dict[TopicPartition, list[tuple[int, int]]] = {}
        try:
            for topic, partitions in value.items():
                for partition, ranges in partitions.items():
                    parsed[TopicPartition(_topic(topic), int(partition))] = [_range(r) for r in ranges]
        except (AttributeError, TypeError, ValueError) as error:
            raise MalformedValue(where, f"not offset ranges: {str(value)[:80]!r} ({error})") from None
        return cls(parsed)


NO_RANGES = OffsetRanges()


def _topic(name: object) -> str:
    if not isinstance(name, str) or not is_legal(name):
        raise ValueError(f"{str(name)[:60]!r} is not a legal topic name")
    return name


def _range(value: Any) -> tuple[int, int]:
    start, end = value
    if not (type(start) is type(end) is int and 0 <= start < end <= MAX_OFFSET):
        raise ValueError(f"{value!r} is not a range of offsets")
    return start, end


def _merged(ranges: Iterable[tuple[int, int]]) -> tuple[OffsetRange, ...]:
    merged: list[OffsetRange] = []
    for start, end in sorted(ranges):
        if end <= start:
            continue
        if merged and start <= merged[-1].end:
            merged[-1] = OffsetRange(merged[-1].start, max(end, merged[-1].end))
        else:
            merged.append(OffsetRange(start, end))
    return tuple(merged)


def _without(ranges: tuple[OffsetRange, ...], taken: tuple[OffsetRange, ...]) -> Iterator[tuple[int, int]]:
    for start, end in ranges:
        at = start
        for hole in taken:
            if hole.end <= at or hole.start >= end:
                continue
            if at < hole.start:
                yield at, hole.start
            at = max(at, hole.end)
        if at < end:
            yield at, end


VERSION = 1


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """The ``number``-th micro-batch of a checkpoint, which reads exactly ``ranges``, planned at ``planned_ms`` (since
    1970) by ``consumer``, a member of ``group``.

    In other sources, an offset is a position. In this source, the end of a micro-batch lists its ranges, because
    partitions come and go between micro-batches, and a partition that returns may continue at another offset. The
    number distinguishes two batches that read the same ranges (after an operator has reset the offsets).
    """

    group: str
    number: int = 0
    ranges: OffsetRanges = NO_RANGES
    consumer: str = ""
    planned_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON form. Its keys have a fixed order, because Spark compares offsets as text."""
        return {
            "version": VERSION,
            "group": self.group,
            "batch": self.number,
            "consumer": self.consumer,
            "planned_ms": self.planned_ms,
            "ranges": {
                topic: {partition: [list(one) for one in ranges] for partition, ranges in partitions.items()}
                for topic, partitions in self.ranges.to_json().items()
            },
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str = "the checkpoint's offset") -> PlannedBatch:
        """Decodes ``value``. Raises :class:`MalformedValue` if this source did not write it."""
        if value.get("version", VERSION) != VERSION:
            raise MalformedValue(where, f"has version {value['version']!r}; this release supports {VERSION}")
        try:
            return cls(
                fields.text(value, "group", where),
                fields.number(value, "batch", where),
                OffsetRanges.from_json(value["ranges"], where),
                fields.text(value, "consumer", where),
                fields.number(value, "planned_ms", where),
            )
        except (KeyError, TypeError) as error:
            raise MalformedValue(where, f"was not written by the kafka_coord data source ({error!r})") from None


def require_group(batch: PlannedBatch, group: str) -> None:
    """Raises :class:`MalformedValue` for a checkpoint that belongs to another group, whose offsets are meaningless
    here."""
    if batch.group != group:
        raise MalformedValue(
            "the checkpoint",
            f"belongs to group {batch.group!r}, but this query is for group {group!r}; use another checkpointLocation",
        )
