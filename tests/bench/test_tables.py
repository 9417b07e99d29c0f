"""Figures from measurements: spreads, ratios, and which bars they meet."""

from __future__ import annotations

from collections.abc import Sequence

from kafka_coord.dev.bench.report import Bar, Spread
from kafka_coord.dev.bench.spark import tables
from kafka_coord.dev.bench.spark.handover import Handovers, Stop
from kafka_coord.dev.bench.spark.soak import MemorySample
from kafka_coord.dev.bench.spark.testbed import OURS, SPARKS, MicroBatch, Work
from kafka_coord.dev.bench.spark.throughput import Drain
from kafka_coord.dev.bench.spark.triggers import Ticks


def drained(source: str, *seconds: float, partitions: int = 1, work: Work = Work.RAW) -> list[Drain]:
    return [Drain(source, partitions, work, 1_000, one, one + 1, 0.5, 100.0) for one in seconds]


def batches(*ms: int, rows: int = 0) -> list[MicroBatch]:
    return [MicroBatch(rows, 0.0, one, {"latestOffset": 1}) for one in ms]


def ticks(source: str, small: Sequence[int], empty: Sequence[int], partitions: int = 1) -> Ticks:
    return Ticks(source, partitions, batches(*small, rows=5), batches(*empty), 0.2, 0.1)


def bar(found: Sequence[Bar], name: str) -> Bar:
    (one,) = [one for one in found if one.name == name]
    return one


def test_a_spread_is_made_of_values_that_were_measured() -> None:
    spread = Spread.of([float(n) for n in range(1, 201)])
    assert spread is not None
    assert (spread.n, spread.median, spread.p99, spread.least, spread.most) == (200, 100.5, 198, 1, 200)
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(3, 2.0, 3.0, 1.0, 3.0)
    assert Spread.of([]) is None


def test_whole_topics_are_compared_by_their_medians_for_each_number_of_partitions() -> None:
    drains = [*drained(OURS, 1, 2, 9), *drained(SPARKS, 4, 4, 4), *drained(OURS, 5, partitions=12)]
    drains += drained(SPARKS, 4, partitions=12)

    rows = tables.throughput(drains).rows
    assert [(row["partitions"], row["source"], row["rows_per_s"]) for row in rows] == [
        (1, OURS, 500),
        (1, SPARKS, 250),
        (12, OURS, 200),
        (12, SPARKS, 250),
    ]
    found = bar(tables.bars(drains, [], [], []), "rows/s over a whole topic")
    assert found.met is False, "slower with 12 partitions"
    assert found.found == "2.00 times (raw, partitions: 1), 0.80 times (raw, partitions: 12)"


def test_a_micro_batch_may_take_1_3_times_as_long_as_sparks_own() -> None:
    found = [ticks(OURS, [130, 130], [14, 14]), ticks(SPARKS, [100, 100], [10, 10])]

    judged = tables.bars([], found, [], [])
    assert bar(judged, "time of a small micro-batch").met is True
    assert bar(judged, "time of an empty micro-batch").met is False
    assert bar(judged, "time of an empty micro-batch").found == "14 vs. 10 ms, 1.40 times (partitions: 1)"
    assert [row["micro_batch"] for row in tables.micro_batches(found).rows] == ["small", "empty"] * 2


def test_a_stop_is_late_when_the_micro_batch_at_work_was_through_before_it_was_acknowledged() -> None:
    in_time = Stop(ms=900, micro_batch_ms=950)
    idle = Stop(ms=400, micro_batch_ms=None)
    late = Stop(ms=900, micro_batch_ms=500)
    back_to_back = Handovers(0, 12, 1_000.0, [in_time, idle, late], batches(500, 950, rows=9))
    every_second = Handovers(1_000, 12, 1_000.0, [in_time, idle, late], batches(500, 950, rows=9))

    assert tables.late(back_to_back) == 1
    assert tables.late(every_second) == 0, "the next trigger is within a second"
    found = bar(tables.bars([], [], [back_to_back, every_second], []), "stop-fetcher to acknowledgement")
    assert (found.met, found.found) == (False, "5 of 6")


def test_memory_is_flat_when_the_last_third_is_as_the_second() -> None:
    def samples(*mib: float) -> list[MemorySample]:
        return [MemorySample(minute, minute * 10, 3, one, one / 2, 500.0) for minute, one in enumerate(mib)]

    def met(*mib: float) -> bool | None:
        return bar(tables.bars([], [], [], samples(*mib)), "memory of Python workers").met

    assert met(50, 100, 100, 100, 101, 102) is True
    assert met(50, 100, 100, 100, 120, 140) is False
    assert met(50, 100) is None


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    judged = tables.bars(drained(OURS, 1), [ticks(OURS, [1], [1])], [], [])
    assert {one.met for one in judged} == {None}
    assert {one.found for one in judged} == {"not measured"}
