"""The options of the Spark bench."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from kafka_coord.dev.cluster.flights import FLIGHTS


class Part(StrEnum):
    THROUGHPUT = "throughput"
    MICRO_BATCHES = "micro-batches"
    HANDOVER = "handover"
    SOAK = "soak"


@dataclass(frozen=True, slots=True)
class SparkBenchOptions:
    """``rows`` of the topics that are read whole, ``repeat`` times by each source after ``warm_up`` times that do not
    count; ``seconds`` of small and of empty micro-batches, with ``burst`` rows a second, in ``rounds`` by each source,
    each after ``settling_s`` that do not count; ``joins`` of another member for each trigger, with ``load`` rows a
    second, which is also what is written while a soak lasts (``minutes``; 0: none). ``judged`` is whether the figures
    are held against the bars."""

    parts: tuple[Part, ...] = tuple(Part)
    rows: int = FLIGHTS
    repeat: int = 5
    warm_up: int = 1
    partitions: tuple[int, ...] = (1, 12)
    parsed: bool = True
    burst: int = 100
    seconds: float = 10.0
    rounds: int = 3
    settling_s: float = 4.0
    joins: int = 10
    load: int = 5_000
    minutes: float = 0.0
    cores: int = 2
    judged: bool = True

    def to_json(self) -> Mapping[str, Any]:
        return asdict(self) | {"partitions": list(self.partitions), "parts": [str(part) for part in self.parts]}


SMOKE = SparkBenchOptions(
    rows=5_000,
    repeat=1,
    warm_up=0,
    partitions=(3,),
    parsed=False,
    burst=10,
    seconds=2.0,
    rounds=1,
    settling_s=0.5,
    joins=1,
    load=200,
    judged=False,
)
"""Everything once, to see that it works: its figures mean nothing."""
