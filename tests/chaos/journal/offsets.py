"""The committed offsets that an observer read repeatedly."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kafka_coord.dev.json_lines import Appending, read_lines
from kafka_coord.model import TopicPartition

OFFSETS = "offsets.jsonl"


class OffsetsRead(NamedTuple):
    """The offsets of ``group``, requested at ``since`` and received at ``t``, of the partitions that have an offset."""

    t: float
    since: float
    group: str
    offsets: Mapping[TopicPartition, int]


class OffsetsWriter(Appending):
    """Appends to ``offsets.jsonl``."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / OFFSETS)

    def told(self, since: float, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        rows = [[*partition, offset] for partition, offset in offsets.items()]
        self.append({"t": time.monotonic(), "s": since, "g": group, "o": rows})


def read_offsets(directory: Path) -> tuple[OffsetsRead, ...]:
    return tuple(
        read_lines(
            directory / OFFSETS,
            lambda value: OffsetsRead(
                value["t"], value["s"], value["g"], {TopicPartition(topic, p): at for topic, p, at in value["o"]}
            ),
        )
    )
