"""Measures how fast a query with the trigger available-now reads a whole topic."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_coord.dev.bench.spark.testbed import OURS, SparkTestbed, Work
from kafka_coord.dev.bench.usage import Meter
from kafka_coord.errors import VerificationFailed

_WITHIN_S = 600.0
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Drain:
    """How one query read a topic. ``reading_s`` is the time of its micro-batches with rows, including planning, and
    ``wall_s`` that of the whole query, including starting it and joining the group. CPU and memory are those of Spark's
    JVM and all its Python processes.
    """

    source: str
    partitions: int
    work: Work
    rows: int
    reading_s: float
    wall_s: float
    cpu_s: float
    peak_mib: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.reading_s


def drain(testbed: SparkTestbed, source: str, topic: str, partitions: int, rows: int, work: Work) -> Drain:
    """Runs the query. Raises :class:`VerificationFailed` if it did not read exactly ``rows``."""
    options = {"maxOffsetsPerTrigger": rows} if source == OURS else {}  # Spark's own has no limit by default
    trigger = {"availableNow": True}
    with (
        Meter(testbed.jvm) as meter,
        testbed.query(source, topic, trigger=trigger, work=work, startingOffsets="earliest", **options) as running,
    ):
        wall_s = running.finish(_WITHIN_S)
        cpu_s = meter.cpu_s()
        batches = [batch for batch in running.batches() if batch.rows]
    found = sum(batch.rows for batch in batches)
    if found != rows:
        raise VerificationFailed(f"format {source} read {found} rows of a topic with {rows}")
    return Drain(
        source=source,
        partitions=partitions,
        work=work,
        rows=rows,
        reading_s=sum(batch.ms for batch in batches) / 1000,
        wall_s=wall_s,
        cpu_s=cpu_s,
        peak_mib=meter.peak_bytes / _MIB,
    )
