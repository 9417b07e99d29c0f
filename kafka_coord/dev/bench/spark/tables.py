"""Turns the measurements into tables and targets. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kafka_coord.dev.bench.report import Bar, Drawing, Spread, Table
from kafka_coord.dev.bench.spark.handover import Handovers
from kafka_coord.dev.bench.spark.soak import FLAT, MemorySample, growth
from kafka_coord.dev.bench.spark.testbed import OURS, SPARKS, MicroBatch, Work
from kafka_coord.dev.bench.spark.throughput import Drain
from kafka_coord.dev.bench.spark.triggers import Ticks
from kafka_coord.model.sequences import grouped

MICRO_BATCH_BAR = 1.3
"""How many times as long as with Spark's own source a small or empty micro-batch may take."""
ACKNOWLEDGING_MS = 100
"""How long after its micro-batch an acknowledgement may arrive, in ms: one write to ZooKeeper, and noticing it."""


def throughput(drains: Sequence[Drain]) -> Table:
    rows = []
    for (partitions, work, source), found in grouped(
        drains, lambda one: (one.partitions, str(one.work), one.source)
    ).items():
        rates = Spread.some(one.rows_per_s for one in found)
        rows.append(
            {
                "partitions": partitions,
                "work": work,
                "source": source,
                "n": rates.n,
                "rows_per_s": round(rates.median),
                "least_rows_per_s": round(rates.least),
                "most_rows_per_s": round(rates.most),
                "reading_s": round(Spread.some(one.reading_s for one in found).median, 2),
                "whole_query_s": round(Spread.some(one.wall_s for one in found).median, 2),
                "cpu_s": round(Spread.some(one.cpu_s for one in found).median, 2),
                "peak_mib": round(max(one.peak_mib for one in found)),
            }
        )
    return Table("throughput", rows, [Drawing(("partitions", "work", "source"), "rows_per_s", "most_rows_per_s")])


def micro_batches(ticks: Sequence[Ticks]) -> Table:
    rows = []
    for (partitions, source), found in grouped(ticks, lambda one: (one.partitions, one.source)).items():
        for kind, batches, cores in (
            ("small", [batch for one in found for batch in one.small], [one.small_cores for one in found]),
            ("empty", [batch for one in found for batch in one.empty], [one.empty_cores for one in found]),
        ):
            if (ms := Spread.of([batch.ms for batch in batches])) is None:
                continue
            row = {"partitions": partitions, "micro_batch": kind, "source": source}
            row |= {f"{name}_ms" if name != "n" else name: value for name, value in ms.to_json().items()}
            row["planning_ms"] = round(Spread.some(batch.phases.get("latestOffset", 0) for batch in batches).median)
            row["cpu_percent_of_a_core"] = round(100 * Spread.some(cores).median, 1)
            rows.append(row)
    return Table("micro-batches", rows)


def handovers(found: Sequence[Handovers]) -> Table:
    rows = []
    for one in found:
        stops, batches = Spread.some(stop.ms for stop in one.stops), Spread.some(batch.ms for batch in one.batches)
        rows.append(
            {
                "trigger_ms": one.trigger_ms,
                "partitions": one.partitions,
                "rows_per_s": round(one.rows_per_s),
                "stops": stops.n,
                "median_ms": round(stops.median),
                "p99_ms": round(stops.p99),
                "max_ms": round(stops.most),
                "late": late(one),
                "micro_batch_median_ms": round(batches.median),
                "micro_batch_max_ms": round(batches.most),
            }
        )
    return Table("stop-fetcher to acknowledgement", rows)


def soak(samples: Sequence[MemorySample]) -> Table:
    rows = [
        {
            "minute": round(sample.minute, 1),
            "rows": sample.rows,
            "python_processes": sample.processes,
            "python_mib": round(sample.python_mib, 1),
            "largest_mib": round(sample.largest_mib, 1),
            "jvm_mib": round(sample.jvm_mib),
        }
        for sample in samples
    ]
    return Table("memory", rows)


def bars(
    drains: Sequence[Drain], ticks: Sequence[Ticks], handed_over: Sequence[Handovers], samples: Sequence[MemorySample]
) -> list[Bar]:
    return [
        _throughput_bar(drains),
        _micro_batch_bar("small", ticks, lambda one: one.small),
        _micro_batch_bar("empty", ticks, lambda one: one.empty),
        _handover_bar(handed_over),
        _memory_bar(samples),
    ]


def milliseconds(batches: Sequence[MicroBatch]) -> str:
    spread = Spread.of([batch.ms for batch in batches])
    return f"{spread.median:.0f} ms ({spread.n})" if spread else "none"


def late(one: Handovers) -> int:
    """Returns how many stops were acknowledged too late. A stop may take as long as the running micro-batch (if none
    was running: the longest one) or the trigger interval, whichever is longer, plus ``ACKNOWLEDGING_MS``.
    """
    longest = max((batch.ms for batch in one.batches), default=0)
    return sum(
        stop.ms
        > max(stop.micro_batch_ms if stop.micro_batch_ms is not None else longest, one.trigger_ms) + ACKNOWLEDGING_MS
        for stop in one.stops
    )


def _throughput_bar(drains: Sequence[Drain]) -> Bar:
    name, wanted = "rows/s over a whole topic", "at least as many as with Spark's own source"
    ratios = {}
    for (partitions, work), found in grouped(drains, lambda one: (one.partitions, one.work)).items():
        ours = [one.rows_per_s for one in found if one.source == OURS]
        sparks = [one.rows_per_s for one in found if one.source == SPARKS]
        if ours and sparks:
            ratios[partitions, work] = Spread.some(ours).median / Spread.some(sparks).median
    if not ratios:
        return _not_measured(name, wanted)
    told = ", ".join(f"{ratio:.2f} times ({work}, partitions: {count})" for (count, work), ratio in ratios.items())
    # The query's own work costs the same with either source, so the target is for queries that only read.
    return Bar(name, wanted, told, all(ratio >= 1 for (_, work), ratio in ratios.items() if work is Work.RAW))


def _micro_batch_bar(kind: str, ticks: Sequence[Ticks], of: Callable[[Ticks], Sequence[MicroBatch]]) -> Bar:
    name, wanted = f"time of {'an' if kind == 'empty' else 'a'} {kind} micro-batch", f"at most {MICRO_BATCH_BAR} times"
    wanted += " that of Spark's own source"
    found = {}
    for (partitions,), same in grouped(ticks, lambda one: (one.partitions,)).items():
        ours = Spread.of([batch.ms for one in same if one.source == OURS for batch in of(one)])
        sparks = Spread.of([batch.ms for one in same if one.source == SPARKS for batch in of(one)])
        if ours and sparks:
            found[partitions] = (ours.median, sparks.median)
    if not found:
        return _not_measured(name, wanted)
    told = ", ".join(
        f"{ours:.0f} vs. {sparks:.0f} ms, {ours / max(sparks, 1):.2f} times (partitions: {count})"
        for count, (ours, sparks) in found.items()
    )
    return Bar(name, wanted, told, all(ours <= MICRO_BATCH_BAR * max(sparks, 1) for ours, sparks in found.values()))


def _handover_bar(found: Sequence[Handovers]) -> Bar:
    name, wanted = "stop-fetcher to acknowledgement", "within one micro-batch"
    stops, over = sum(len(one.stops) for one in found), sum(late(one) for one in found)
    if not stops:
        return _not_measured(name, wanted)
    return Bar(name, wanted, f"{stops - over} of {stops}", over == 0)


def _memory_bar(samples: Sequence[MemorySample]) -> Bar:
    name, wanted = "memory of Python workers", f"flat: the last third at most {FLAT:.2f} times the second"
    ratio = growth(samples)
    if ratio is None:
        return _not_measured(name, wanted)
    return Bar(name, wanted, f"{ratio:.3f} times over {samples[-1].minute:.0f} minutes", ratio <= FLAT)


def _not_measured(name: str, wanted: str) -> Bar:
    return Bar(name, wanted, "not measured", None)
