"""Checks whether memory grows: samples the Python processes of a query that reads for a long time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kafka_coord.dev.bench.spark.testbed import OURS, SparkTestbed
from kafka_coord.dev.bench.spark.triggers import TRIGGER
from kafka_coord.dev.bench.usage import Process, tree

_WITHIN_S = 90.0
_MIB = 2**20
FLAT = 1.10
"""The highest allowed ratio of the memory in the last third to that in the second third. A higher one means growth."""


@dataclass(frozen=True, slots=True)
class MemorySample:
    """A sample after ``minute`` minutes: the number of Spark's Python processes, the sum and the largest of their
    resident memory, and the ``rows`` read since the beginning.
    """

    minute: float
    rows: int
    processes: int
    python_mib: float
    largest_mib: float
    jvm_mib: float


def soak(
    testbed: SparkTestbed, partitions: int, *, minutes: float, rows_per_s: int, tell: Callable[[MemorySample], None]
) -> tuple[MemorySample, ...]:
    """Takes a sample after the first micro-batches, and then one a minute. If ``minutes`` is below six, the
    interval is a sixth of it."""
    topic = testbed.new_topic(partitions)
    every_s = min(60.0, minutes * 60 / 6)
    samples: list[MemorySample] = []
    with (
        testbed.query(OURS, topic, trigger={"processingTime": TRIGGER}, startingOffsets="earliest") as running,
        testbed.feeding(topic, max(1, rows_per_s // 10), every_s=0.1),
    ):
        running.await_rows(rows_per_s, _WITHIN_S)
        began = time.monotonic()
        while True:
            rows = sum(batch.rows for batch in running.batches())
            samples.append(_memory_sample(testbed, (time.monotonic() - began) / 60, rows))
            tell(samples[-1])
            due = began + len(samples) * every_s
            if due > began + minutes * 60 + 1:
                return tuple(samples)
            time.sleep(max(0.0, due - time.monotonic()))


def growth(samples: Sequence[MemorySample]) -> float | None:
    """Returns the mean memory in the last third divided by the mean in the second third, or None if there are too few
    samples. The first third does not count, because caches are still filling.
    """
    third = len(samples) // 3
    if not third:
        return None
    middle, last = samples[third : 2 * third], samples[-third:]
    return sum(one.python_mib for one in last) / sum(one.python_mib for one in middle)


def _memory_sample(testbed: SparkTestbed, minute: float, rows: int) -> MemorySample:
    found = tree(testbed.jvm)
    python = [one.rss_bytes / _MIB for one in found if _is_python(one)]
    jvm = sum(one.rss_bytes / _MIB for one in found if one.pid == testbed.jvm)
    return MemorySample(minute, rows, len(python), sum(python), max(python, default=0.0), jvm)


def _is_python(process: Process) -> bool:
    return "python" in process.command.partition(" ")[0]
