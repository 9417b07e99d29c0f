"""Runs the Spark benchmark: starts the cluster and Spark, measures both sources in alternation, and writes the
report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kafka_coord.dev.bench.report import BenchReport, Setup
from kafka_coord.dev.bench.spark import tables
from kafka_coord.dev.bench.spark.connector import own_connector
from kafka_coord.dev.bench.spark.handover import Handovers, hand_over
from kafka_coord.dev.bench.spark.options import Part, SparkBenchOptions
from kafka_coord.dev.bench.spark.soak import MemorySample, soak
from kafka_coord.dev.bench.spark.testbed import OURS, SPARKS, SparkTestbed, Work
from kafka_coord.dev.bench.spark.throughput import Drain, drain
from kafka_coord.dev.bench.spark.triggers import Ticks, tick
from kafka_coord.dev.cluster.cluster import DevCluster
from kafka_coord.dev.cluster.jars import KAFKA_VERSION
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.errors import DevClusterError
from kafka_coord.spark.session import find_java, spark_session

_SETTINGS = {
    "spark.driver.memory": "1g",
    # By default, Spark reports idle triggers only every ten seconds, and soon drops progress reports.
    "spark.sql.streaming.noDataProgressEventInterval": "0",
    "spark.sql.streaming.numRecentProgressUpdates": "1000000",
}


def run_spark_bench(options: SparkBenchOptions, directory: Path, on_progress: OnProgress) -> BenchReport:
    """Runs the benchmark in ``directory``, with one broker. If Spark's own connector cannot be fetched, measures only
    this project's source, and adds a note. Raises :class:`~kafka_coord.errors.KafkaCoordError`."""
    setup = Setup.here(kafka=KAFKA_VERSION, java=find_java().version)
    notes: list[str] = []
    with _testbed(options, directory, notes, on_progress) as testbed:
        wanted = options.parts
        drains = _throughput(testbed, options, on_progress) if Part.THROUGHPUT in wanted else []
        ticks = _micro_batches(testbed, options, on_progress) if Part.MICRO_BATCHES in wanted else []
        handovers = _handovers(testbed, options, on_progress) if Part.HANDOVER in wanted else []
        samples = _soak(testbed, options, on_progress) if Part.SOAK in wanted else ()
    found = (tables.throughput(drains), tables.micro_batches(ticks), tables.handovers(handovers), tables.soak(samples))
    bars = tables.bars(drains, ticks, handovers, samples)
    return BenchReport.of("spark", setup, options, [one for one in found if one.rows], bars, notes)


@contextmanager
def _testbed(
    options: SparkBenchOptions, directory: Path, notes: list[str], on_progress: OnProgress
) -> Iterator[SparkTestbed]:
    settings, sources = dict(_SETTINGS), [OURS]
    try:
        settings["spark.jars"] = ",".join(str(jar) for jar in own_connector())
        sources.append(SPARKS)
    except DevClusterError as error:
        notes.append(f"Spark's own source was not measured: {error}")
        on_progress(notes[-1])
    with DevCluster(directory / "cluster", brokers=1, coordinators=True, on_progress=on_progress) as cluster:
        on_progress("starting Spark")
        with spark_session(
            "kafka-coord bench",
            master=f"local[{options.cores}]",
            conf=settings,
            java=find_java().executable,
            log=directory / "spark.log",
        ) as spark:
            spark.sparkContext.setLogLevel("ERROR")
            gateway: Any = spark.sparkContext._gateway  # the only way to find Spark's process
            yield SparkTestbed(
                spark, gateway.proc.pid, cluster.zookeeper, cluster.bootstrap_servers, directory, tuple(sources)
            )


def _throughput(testbed: SparkTestbed, options: SparkBenchOptions, on_progress: OnProgress) -> list[Drain]:
    drains: list[Drain] = []
    works = (Work.RAW, Work.PARSED) if options.parsed else (Work.RAW,)
    for partitions in options.partitions:
        on_progress(f"writing {options.rows:,} flights, partitions: {partitions}")
        topic = testbed.filled_topic(partitions, options.rows)
        for work in works:
            for round_number, source in _rounds(testbed, options.warm_up, options.repeat):
                found = drain(testbed, source, topic, partitions, options.rows, work)
                on_progress(
                    f"{_round(round_number)} partitions: {partitions}, {work}, {source}: "
                    f"{found.rows_per_s:,.0f} rows/s, whole query {found.wall_s:.1f} s, CPU {found.cpu_s:.1f} s"
                )
                if round_number >= 0:
                    drains.append(found)
    return drains


def _micro_batches(testbed: SparkTestbed, options: SparkBenchOptions, on_progress: OnProgress) -> list[Ticks]:
    ticks: list[Ticks] = []
    for partitions in options.partitions:
        topic = testbed.new_topic(partitions)
        for round_number, source in _rounds(testbed, 0, options.rounds):
            found = tick(
                testbed,
                source,
                topic,
                partitions,
                burst=options.burst,
                seconds=options.seconds,
                settling_s=options.settling_s,
            )
            on_progress(
                f"{_round(round_number)} partitions: {partitions}, a trigger every second, {source}: "
                f"{tables.milliseconds(found.small)} with few rows, {tables.milliseconds(found.empty)} with none"
            )
            ticks.append(found)
    return ticks


def _handovers(testbed: SparkTestbed, options: SparkBenchOptions, on_progress: OnProgress) -> list[Handovers]:
    handovers = []
    for trigger_ms in options.triggers:
        found = hand_over(
            testbed, max(options.partitions), trigger_ms=trigger_ms, rows_per_s=options.load, joins=options.joins
        )
        handovers.append(found)
        longest = max(stop.ms for stop in found.stops)
        on_progress(
            f"members joined: {options.joins}, trigger {trigger_ms} ms: stop-fetchers acknowledged within "
            f"{longest:.0f} ms"
        )
    return handovers


def _soak(testbed: SparkTestbed, options: SparkBenchOptions, on_progress: OnProgress) -> Sequence[MemorySample]:
    if not options.minutes:
        return ()

    def tell(sample: MemorySample) -> None:
        on_progress(
            f"soak, minute {sample.minute:.0f}: {sample.rows:,} rows, {sample.processes} Python processes with "
            f"{sample.python_mib:.0f} MiB"
        )

    return soak(testbed, max(options.partitions), minutes=options.minutes, rows_per_s=options.load, tell=tell)


def _rounds(testbed: SparkTestbed, warm_up: int, repeat: int) -> Iterator[tuple[int, str]]:
    """Yields (round, source). Rounds before 0 only warm up. The order of the sources alternates."""
    for number in range(-warm_up, repeat):
        for source in testbed.sources if number % 2 == 0 else reversed(testbed.sources):
            yield number, source


def _round(number: int) -> str:
    return f"{number + 1}." if number >= 0 else "warming up:"
