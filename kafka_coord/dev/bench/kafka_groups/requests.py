"""Measures how many commits, offset fetches and heartbeats a core can answer per second, and their latency at a
moderate rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from kafka_coord.dev.bench.kafka_groups.client import RawClient
from kafka_coord.dev.bench.kafka_groups.lanes import Lane, pace, saturate
from kafka_coord.dev.bench.kafka_groups.members import (
    COMMIT,
    FETCH,
    HEARTBEAT,
    TOPIC,
    Member,
    await_coordinator,
    join_all,
    offset_fetch,
)
from kafka_coord.dev.bench.kafka_groups.options import KafkaGroupsOptions
from kafka_coord.dev.bench.kafka_groups.servers import INSTANCE, KAFKA, Servers
from kafka_coord.dev.bench.report import Bar, Drawing, Spread, Table
from kafka_coord.dev.bench.usage import cpu_meter
from kafka_coord.dev.cluster.process import OnProgress

_CONNECTIONS, _PARTITIONS = 16, 10
_OF_KAFKAS, _TIMES_P99 = 0.5, 1.5
_TICK_S = 0.01
"""The kernel counts CPU time in ticks, so a short run may show none."""


@dataclass(slots=True)
class Answered:
    """One coordinator's result for one kind of request, over all rounds."""

    request: str
    by: str
    count: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    behind_cpu_s: float = 0.0
    """The CPU time of the broker behind an instance."""
    ms: list[float] = field(default_factory=list)

    @property
    def cpu_us(self) -> float:
        return 1e6 * max(self.cpu_s, _TICK_S) / self.count

    def row(self) -> Mapping[str, Any]:
        spread = Spread.some(self.ms)
        return {
            "request": self.request,
            "answered_by": self.by,
            "per_s": round(self.count / self.wall_s),
            "cpu_us": round(self.cpu_us, 1),
            "broker_cpu_us": round(1e6 * self.behind_cpu_s / self.count, 1),
            "per_core": round(1e6 / self.cpu_us),
            "paced_p50_ms": round(spread.median, 2),
            "paced_p99_ms": round(spread.p99, 2),
        }


_MAKERS: Mapping[str, tuple[int, Callable[[Member], Any]]] = {
    "OffsetCommit": (COMMIT, lambda member: member.commit(_PARTITIONS, 1)),
    "OffsetFetch": (FETCH, lambda member: offset_fetch([member.group], _PARTITIONS)),
    "Heartbeat": (HEARTBEAT, lambda member: member.heartbeat()),
}


def measure_requests(
    servers: Servers, options: KafkaGroupsOptions, on_progress: OnProgress
) -> tuple[list[Table], list[Bar]]:
    """Measures each kind of request at both coordinators in alternation, with one member per group and connection."""
    servers.make_topic(TOPIC, _PARTITIONS)
    sides = {INSTANCE: servers.instance.address}
    if options.compare:
        sides[KAFKA] = servers.broker.address
    found = [Answered(request, by) for request in _MAKERS for by in sides]
    with ExitStack() as running:
        lanes = {by: _lanes(address, running) for by, address in sides.items()}
        for by in sides:  # warms up, so the JVM compiles its hot code
            for request in _MAKERS:
                saturate(lanes[by][request], options.warm_up_s)
        for _ in range(options.rounds):
            for one in found:
                _saturated(one, lanes[one.by][one.request], servers, options.seconds)
        for _ in range(options.rounds):
            for one in found:
                one.ms += pace(lanes[one.by][one.request], options.per_s, 2 * options.seconds)
    for one in found:
        row = one.row()
        on_progress(
            f"{one.request} by {one.by}: {row['cpu_us']} µs of CPU, "
            f"{row['paced_p99_ms']} ms (p99) at {options.per_s:,}/s"
        )
    rows = [one.row() for one in found]
    drawn = (
        Drawing(("request", "answered_by"), "cpu_us"),
        Drawing(("request", "answered_by"), "paced_p50_ms", "paced_p99_ms"),
    )
    return [Table("requests", rows, drawn)], request_bars(found, options.per_s)


def _lanes(address: str, running: ExitStack) -> Mapping[str, Sequence[Lane]]:
    """Returns the lanes for each kind of request. All kinds use the same connections."""
    groups = [f"requests-{number}" for number in range(_CONNECTIONS)]
    await_coordinator(address, groups)
    members = [Member(running.enter_context(RawClient(address)), group) for group in groups]
    join_all(members)
    return {
        request: [Lane.of(member.client, request, version, make(member)) for member in members]
        for request, (version, make) in _MAKERS.items()
    }


def _saturated(one: Answered, lanes: Sequence[Lane], servers: Servers, seconds: float) -> None:
    broker_s, cpu_s = cpu_meter(servers.broker.pid), cpu_meter(servers.answering(one.by))
    one.count += saturate(lanes, seconds)
    one.wall_s += seconds
    one.cpu_s += cpu_s()
    one.behind_cpu_s += broker_s()


def request_bars(found: Sequence[Answered], per_s: float) -> list[Bar]:
    """Compares an instance with the broker's own coordinator, for each kind of request."""
    bars = []
    theirs = {one.request: one for one in found if one.by == KAFKA}
    for ours in found:
        if ours.by == KAFKA or ours.request not in theirs:
            continue
        kafka = theirs[ours.request]
        ratio = kafka.cpu_us / ours.cpu_us
        p99, limit = Spread.some(ours.ms).p99, _TIMES_P99 * Spread.some(kafka.ms).p99
        wanted = f"at least {_OF_KAFKAS:g} times Kafka's"
        bars.append(Bar(f"{ours.request} per core", wanted, f"{ratio:.2f} times", ratio >= _OF_KAFKAS))
        bars.append(
            Bar(
                f"{ours.request} p99 at {per_s:,.0f}/s",
                f"at most {_TIMES_P99:g} times Kafka's: {limit:.2f} ms",
                f"{p99:.2f} ms",
                p99 <= limit,
            )
        )
    return bars
