"""Measures how many offsets a member commits per second through the consumers' channel, and what it costs to list the
starts and ends of logs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_coord.channel.operations import Registration
from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.dev.bench.group import plain_member, write_topic, zookeeper
from kafka_coord.dev.bench.report import Bar, BenchOptions, BenchReport, Drawing, Setup, Spread, Table
from kafka_coord.dev.bench.usage import Meter
from kafka_coord.dev.cluster.kafka import KafkaCluster, KafkaSettings
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.dev.cluster.zookeeper import ZooKeeperSettings
from kafka_coord.errors import KafkaCoordError
from kafka_coord.kafka.offsets import OffsetReader
from kafka_coord.model import PartitionSet, TopicPartition
from kafka_coord.spark.session import find_java
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store

_GROUP, _TOPIC, _CONSUMER = "bench", "flights", "one"
_WANTED_PER_S = 30_000


@dataclass(frozen=True, slots=True)
class OffsetsOptions(BenchOptions):
    """For each size in ``sizes``, the benchmark commits that many offsets at a time, for ``seconds``. Unless ``listed``
    is 0, it then lists the offsets of as many partitions of one broker."""

    sizes: tuple[int, ...] = (1, 10, 100, 1_000, 10_000)
    seconds: float = 5.0
    listed: int = 1_000


SMOKE = OffsetsOptions(sizes=(1, 20), seconds=0.3, listed=0, judged=False)


@dataclass(frozen=True, slots=True)
class Committing:
    """Commits of ``partitions`` offsets each: how long each took, and the CPU time of this process and of ZooKeeper."""

    partitions: int
    ms: Sequence[float]
    wall_s: float
    client_cpu_s: float
    server_cpu_s: float

    @property
    def offsets_per_s(self) -> float:
        return self.partitions * len(self.ms) / self.wall_s


def run_offsets_bench(options: OffsetsOptions, directory: Path, on_progress: OnProgress) -> BenchReport:
    """Runs the benchmark in ``directory``, on its own ZooKeeper. Raises
    :class:`~kafka_coord.errors.KafkaCoordError`."""
    setup = Setup.here(java=find_java().version)
    on_progress("starting ZooKeeper")
    with zookeeper(directory, ZooKeeperSettings(tick_ms=2_000, heap_mb=256)) as (server, store):
        channel, registration = _member(store, max(options.sizes))
        found = []
        for size in options.sizes:
            found.append(_commit(channel, registration, size, options.seconds, server.pid or 0))
            on_progress(
                f"{size:,} partitions per commit: {found[-1].offsets_per_s:,.0f} offsets/s, "
                f"{Spread.some(found[-1].ms).median:.1f} ms per commit"
            )
        tables = [table(found)]
        if options.listed:
            on_progress(f"starting a broker with {options.listed:,} partitions")
            rows = _listing(directory, f"{server.connect_string}/listing", options.listed, options.seconds)
            tables.append(Table("listing", rows, [Drawing(("listed",), "median_ms", "p99_ms")]))
    return BenchReport.of("offsets", setup, options, tables, [bar(found)])


def _listing(directory: Path, zookeeper: str, partitions: int, seconds: float) -> list[dict[str, Any]]:
    """Measures a request for the ends alone, and for the starts as well, as each measurement of lag needs both."""
    with KafkaCluster(directory, zookeeper, brokers=1, settings=KafkaSettings()) as cluster:
        TopicAdmin(cluster.bootstrap_servers).create(_TOPIC, partitions)
        wanted = PartitionSet({_TOPIC: range(partitions)})
        reader = OffsetReader(cluster.bootstrap_servers, {})
        try:
            asks: dict[str, Callable[[PartitionSet], Any]] = {"ends": reader.latest, "starts and ends": reader.ranges}
            return [_listed(what, partitions, lambda ask=ask: ask(wanted), seconds) for what, ask in asks.items()]  # type: ignore[misc]
        finally:
            reader.close()


def _listed(what: str, partitions: int, ask: Callable[[], Any], seconds: float) -> dict[str, Any]:
    if ask().note:
        raise KafkaCoordError(f"the broker does not tell the {what}")
    ms: list[float] = []
    cpu_before = time.process_time()
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        asked = time.perf_counter()
        ask()
        ms.append((time.perf_counter() - asked) * 1000)
    spread, cpu_ms = Spread.some(ms), (time.process_time() - cpu_before) * 1000
    return {
        "listed": what,
        "partitions": partitions,
        "median_ms": round(spread.median, 2),
        "p99_ms": round(spread.p99, 2),
        "client_cpu_ms": round(cpu_ms / len(ms), 2),
    }


def _member(store: Store, partitions: int) -> tuple[ConsumerChannel, Registration]:
    """Registers a consumer, creates the znodes that a coordinator would create, and commits offset 0 for every
    partition."""
    write_topic(store, _TOPIC, partitions)
    store.ensure_path(layout.topic_offsets(_GROUP, _TOPIC))
    channel = ConsumerChannel(store, _GROUP, _CONSUMER)
    found = channel.register(plain_member(_GROUP, _TOPIC, _CONSUMER).registration_value(store))
    if not isinstance(found, Registration):
        raise KafkaCoordError(f"the name {_CONSUMER!r} is taken in this benchmark's own ZooKeeper")
    channel.commit(found, {TopicPartition(_TOPIC, number): 0 for number in range(partitions)})
    return channel, found


def _commit(
    channel: ConsumerChannel, registration: Registration, partitions: int, seconds: float, server: int
) -> Committing:
    ms: list[float] = []
    offset = 0
    with Meter(server) as meter:
        cpu_before = time.process_time()
        began = time.perf_counter()
        while time.perf_counter() - began < seconds or not ms:
            offset += 1
            offsets = {TopicPartition(_TOPIC, number): offset for number in range(partitions)}
            asked = time.perf_counter()
            channel.commit(registration, offsets)
            ms.append((time.perf_counter() - asked) * 1000)
        wall_s = time.perf_counter() - began
        return Committing(partitions, ms, wall_s, time.process_time() - cpu_before, meter.cpu_s())


def table(found: Sequence[Committing]) -> Table:
    rows = []
    for one in found:
        spread = Spread.some(one.ms)
        rows.append(
            {
                "partitions": one.partitions,
                "commits_per_s": round(len(one.ms) / one.wall_s, 1),
                "offsets_per_s": round(one.offsets_per_s),
                "median_ms": round(spread.median, 2),
                "p99_ms": round(spread.p99, 2),
                "client_cpu_percent": round(100 * one.client_cpu_s / one.wall_s),
                "zookeeper_cpu_percent": round(100 * one.server_cpu_s / one.wall_s),
            }
        )
    return Table(
        "offsets", rows, [Drawing(("partitions",), "offsets_per_s"), Drawing(("partitions",), "median_ms", "p99_ms")]
    )


def bar(found: Sequence[Committing]) -> Bar:
    """Compares the best of the measured commit sizes with the target."""
    most = max(one.offsets_per_s for one in found)
    wanted = f"at least {_WANTED_PER_S:,} offsets/s"
    return Bar("offsets committed by one member", wanted, f"{most:,.0f} offsets/s", most >= _WANTED_PER_S)
