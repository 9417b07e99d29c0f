"""Runs the parts of the benchmark for stock Kafka clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from kafka_coord.dev.bench.kafka_groups.idle import measure_idle
from kafka_coord.dev.bench.kafka_groups.joining import measure_joins
from kafka_coord.dev.bench.kafka_groups.listing import measure_listing
from kafka_coord.dev.bench.kafka_groups.loading import measure_loading
from kafka_coord.dev.bench.kafka_groups.managed import measure_managed
from kafka_coord.dev.bench.kafka_groups.moving import measure_moving
from kafka_coord.dev.bench.kafka_groups.options import KafkaGroupsOptions, Part
from kafka_coord.dev.bench.kafka_groups.passing import measure_passing
from kafka_coord.dev.bench.kafka_groups.requests import measure_requests
from kafka_coord.dev.bench.kafka_groups.servers import Servers, started
from kafka_coord.dev.bench.report import Bar, BenchReport, Setup, Table
from kafka_coord.dev.cluster.jars import KAFKA_VERSION
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.spark.session import find_java

Found = tuple[list[Table], list[Bar]]
_WITH_ONE_BROKER: Mapping[Part, Callable[[Servers, KafkaGroupsOptions, OnProgress], Found]] = {
    Part.REQUESTS: measure_requests,
    Part.PASSING: measure_passing,
    Part.JOIN: measure_joins,
    Part.LISTING: measure_listing,
    Part.LOADING: measure_loading,
    Part.IDLE: measure_idle,
}
_WITH_MORE_BROKERS: Mapping[Part, Callable[[Path, KafkaGroupsOptions, OnProgress], Found]] = {
    Part.MOVING: measure_moving,
    Part.MANAGED: measure_managed,
}
_SERVERS = (
    ("one", frozenset(_WITH_ONE_BROKER) - {Part.JOIN}, False),
    ("join", frozenset({Part.JOIN}), True),
)
"""For each cluster: its directory, the parts to run on it, and whether its instance holds heartbeats."""


def run_kafka_groups_bench(options: KafkaGroupsOptions, directory: Path, on_progress: OnProgress) -> BenchReport:
    """Runs the benchmark in ``directory``. Raises :class:`~kafka_coord.errors.KafkaCoordError`."""
    setup = Setup.here(java=find_java().version, kafka=KAFKA_VERSION)
    tables: list[Table] = []
    bars: list[Bar] = []
    for name, of_these, holds in _SERVERS:
        chosen = [part for part in _WITH_ONE_BROKER if part in options.parts and part in of_these]
        if not chosen:
            continue
        on_progress("starting ZooKeeper, a broker and an instance")
        with started(directory / name, holds=holds, as_in_production=options.judged) as servers:
            for part in chosen:
                found = _WITH_ONE_BROKER[part](servers, options, on_progress)
                tables += found[0]
                bars += found[1]
    for part, measure in _WITH_MORE_BROKERS.items():
        if part in options.parts:
            found = measure(directory / str(part), options, on_progress)
            tables += found[0]
            bars += found[1]
    return BenchReport.of("groups", setup, options, tables, bars)
