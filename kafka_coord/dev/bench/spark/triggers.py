"""Measures the duration of micro-batches that read little or nothing, with a trigger every second."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from kafka_coord.dev.bench.spark.testbed import MicroBatch, Running, SparkTestbed
from kafka_coord.dev.bench.usage import Meter

TRIGGER = "1 second"
_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Ticks:
    """One query's triggers with few rows (``small``) and with none (``empty``). CPU is in cores."""

    source: str
    partitions: int
    small: Sequence[MicroBatch]
    empty: Sequence[MicroBatch]
    small_cores: float
    empty_cores: float


def tick(
    testbed: SparkTestbed, source: str, topic: str, partitions: int, *, burst: int, seconds: float, settling_s: float
) -> Ticks:
    """Measures for ``seconds`` with ``burst`` records a second, then for as long without records. Before each, lets the
    query settle."""
    with testbed.query(source, topic, trigger={"processingTime": TRIGGER}, startingOffsets="latest") as running:
        with testbed.feeding(topic, burst, every_s=1.0):
            running.await_rows(burst, _WITHIN_S)
            time.sleep(settling_s)
            small, small_cores = _watch(testbed, running, seconds)
        time.sleep(max(1.0, settling_s / 2))
        empty, empty_cores = _watch(testbed, running, seconds)
    return Ticks(
        source=source,
        partitions=partitions,
        small=[batch for batch in small if batch.rows],
        empty=[batch for batch in empty if not batch.rows],
        small_cores=small_cores,
        empty_cores=empty_cores,
    )


def _watch(testbed: SparkTestbed, running: Running, seconds: float) -> tuple[list[MicroBatch], float]:
    before, began = len(running.batches()), time.monotonic()
    with Meter(testbed.jvm) as meter:
        time.sleep(seconds)
        spent_s = time.monotonic() - began
        cores = meter.cpu_s() / spent_s
    return running.batches()[before:], cores
