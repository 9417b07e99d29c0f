"""Measures what fetches through an instance cost, and how much latency it adds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Producer

from kafka_coord.dev.bench.kafka_groups.client import RawClient
from kafka_coord.dev.bench.kafka_groups.lanes import Lane, pace, saturate
from kafka_coord.dev.bench.kafka_groups.options import KafkaGroupsOptions
from kafka_coord.dev.bench.kafka_groups.servers import INSTANCE, KAFKA, Servers
from kafka_coord.dev.bench.report import Bar, Spread, Table
from kafka_coord.dev.bench.usage import cpu_meter
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.wire.messages import message

_FETCH = 11
_BACKLOG, _SMALL = "backlog", "small"
_PARTITIONS, _PARTITION_BYTES = 8, 1 << 20
_LARGE_CONNECTIONS, _SMALL_CONNECTIONS = 4, 16
_VALUE = bytes(10_000)
_MB_PER_CORE_S, _ADDED_MS = 400.0, 1.0


@dataclass(slots=True)
class Passed:
    """The results of fetching from the server ``by``: the total size of the large answers, and the latency (``ms``) of
    each small fetch."""

    by: str
    bytes: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    ms: list[float] = field(default_factory=list)

    @property
    def mb_per_core_s(self) -> float:
        return self.bytes / 1e6 / self.cpu_s


def measure_passing(
    servers: Servers, options: KafkaGroupsOptions, on_progress: OnProgress
) -> tuple[list[Table], list[Bar]]:
    """Runs the same fetches through the instance and directly from the broker, in alternation."""
    on_progress(f"writing {options.backlog_mb} MB")
    _fill(servers, options.backlog_mb)
    through, direct = found = Passed(INSTANCE), Passed(KAFKA)
    addresses = {INSTANCE: servers.instance.address, KAFKA: servers.broker.address}
    with ExitStack() as running:
        large = {by: _lanes(to, _BACKLOG, _LARGE_CONNECTIONS, running) for by, to in addresses.items()}
        small = {by: _lanes(to, _SMALL, _SMALL_CONNECTIONS, running) for by, to in addresses.items()}
        for one in found:
            saturate(large[one.by], options.warm_up_s)
            saturate(small[one.by], options.warm_up_s)
        for _ in range(options.rounds):
            for one in found:
                _saturated(one, large[one.by], servers, options.seconds)
        for _ in range(options.rounds):
            for one in found:
                one.ms += pace(small[one.by], options.per_s, 2 * options.seconds)
    for one in found:
        on_progress(f"fetches by {one.by}: {one.mb_per_core_s:,.0f} MB per second of CPU")
    return [Table("passing", [_row(one) for one in found])], passing_bars(through, direct, options.per_s)


def _fill(servers: Servers, megabytes: int) -> None:
    servers.make_topic(_BACKLOG, _PARTITIONS)
    servers.make_topic(_SMALL, 1)
    settings = {"bootstrap.servers": servers.broker.address, "linger.ms": 50, "batch.size": 1_000_000, "log_level": 0}
    producer = Producer(settings)
    producer.produce(_SMALL, _VALUE[:1_000], partition=0)
    for number in range(megabytes * 1_000_000 // len(_VALUE)):
        while True:
            try:
                producer.produce(_BACKLOG, _VALUE, partition=number % _PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(60)


def _lanes(address: str, topic: str, connections: int, running: ExitStack) -> Sequence[Lane]:
    value = _request(topic)
    clients = [running.enter_context(RawClient(address)) for _ in range(connections)]
    return [Lane.of(client, "Fetch", _FETCH, value) for client in clients]


def _request(topic: str) -> Any:
    """Returns a request that fetches up to one MiB of each partition, from the beginning."""
    form = message("FetchRequest")
    part = form.struct("FetchPartition")
    parts = tuple(
        part(partition=number, fetch_offset=0, partition_max_bytes=_PARTITION_BYTES)
        for number in range(_PARTITIONS if topic == _BACKLOG else 1)
    )
    wanted = form.struct("FetchTopic")(topic=topic, partitions=parts)
    return form(replica_id=-1, max_wait_ms=500, min_bytes=1, max_bytes=50 << 20, session_epoch=-1, topics=(wanted,))


def _saturated(one: Passed, lanes: Sequence[Lane], servers: Servers, seconds: float) -> None:
    cpu_s = cpu_meter(servers.answering(one.by))
    one.bytes += saturate(lanes, seconds) * lanes[0].size
    one.wall_s += seconds
    one.cpu_s += cpu_s()


def _row(one: Passed) -> dict[str, Any]:
    spread = Spread.some(one.ms)
    return {
        "by": one.by,
        "mb_per_s": round(one.bytes / 1e6 / one.wall_s),
        "mb_per_core_s": round(one.mb_per_core_s),
        "small_p50_ms": round(spread.median, 2),
        "small_p99_ms": round(spread.p99, 2),
    }


def passing_bars(through: Passed, direct: Passed, per_s: float) -> list[Bar]:
    """Compares fetches through the instance with fetches from the broker."""
    speed = through.mb_per_core_s
    added = Spread.some(through.ms).p99 - Spread.some(direct.ms).p99
    return [
        Bar(
            "records passed on per core",
            f"at least {_MB_PER_CORE_S:g} MB/s",
            f"{speed:,.0f} MB/s",
            speed >= _MB_PER_CORE_S,
        ),
        Bar.at_most(f"added to the p99 of small fetches at {per_s:,.0f}/s", _ADDED_MS, round(added, 2), " ms"),
    ]
