"""The options of the Spark benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kafka_coord.dev.bench.report import BenchOptions
from kafka_coord.dev.cluster.flights import FLIGHTS


class Part(StrEnum):
    THROUGHPUT = "throughput"
    MICRO_BATCHES = "micro-batches"
    HANDOVER = "handover"
    SOAK = "soak"


@dataclass(frozen=True, slots=True)
class SparkBenchOptions(BenchOptions):
    """Whole topics: each source reads ``rows`` rows ``repeat`` times, after ``warm_up`` runs that do not count.

    Micro-batches: each of ``rounds`` rounds measures small ones (``burst`` rows a second) and empty ones, each for
    ``seconds`` seconds. A measurement starts ``settling_s`` seconds after its query.

    Handovers: for each of ``triggers`` (intervals in ms), another member joins ``joins`` times, at ``load`` rows a
    second. The soak takes ``minutes`` (0 for none) at the same load.
    """

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
    triggers: tuple[int, ...] = (0, 1_000)
    load: int = 5_000
    minutes: float = 0.0
    cores: int = 2


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
    triggers=(0,),
    load=200,
    judged=False,
)
"""Runs every part once, to check that it works. The figures are meaningless."""
