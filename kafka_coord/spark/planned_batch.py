"""The offset that Spark stores. It contains the ranges of a micro-batch, so that they can be read again even after
partitions have moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafka_coord.errors import MalformedValue
from kafka_coord.model import json_fields as fields
from kafka_coord.spark.ranges import NO_RANGES, OffsetRanges

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
