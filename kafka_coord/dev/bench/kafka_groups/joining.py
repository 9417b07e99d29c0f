"""Measures joining a group of librdkafka consumers, at an instance and at the broker's own coordinator."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from kafka_coord.dev.bench.kafka_groups.options import KafkaGroupsOptions
from kafka_coord.dev.bench.kafka_groups.servers import INSTANCE, KAFKA, Servers
from kafka_coord.dev.bench.rebalance.compare import Brokers, CompareOptions, FetchingGroup, fetching_group
from kafka_coord.dev.bench.rebalance.contenders import DEFAULTS, Contender, Protocol
from kafka_coord.dev.bench.rebalance.figures import Event, summary
from kafka_coord.dev.bench.report import Bar, Drawing, Table
from kafka_coord.dev.cluster.process import OnProgress

_HEARTBEATS_S = 3.0
_AS_IT_COMES = Contender(Protocol.CLASSIC, DEFAULTS)


def measure_joins(
    servers: Servers, options: KafkaGroupsOptions, on_progress: OnProgress
) -> tuple[list[Table], list[Bar]]:
    """Measures joins and leaves. With ``compare``, alternates between two equal groups, one at each coordinator. Most
    of a join is spent waiting for the members' next heartbeats, so the joins are spread evenly over the interval
    between heartbeats, in the same way for both groups.
    """
    sides = {INSTANCE: servers.instance.address}
    if options.compare:
        sides[KAFKA] = servers.broker.address
    asked = CompareOptions(members=options.members, partitions=options.partitions)
    place = Brokers("", servers.broker.address, servers.zookeeper)
    groups: dict[str, FetchingGroup] = {}
    with ExitStack() as running:
        for by, address in sides.items():
            on_progress(f"a group of {options.members} at the {by}")
            directory = servers.directory / f"joins-{by}"
            groups[by] = running.enter_context(
                fetching_group(_AS_IT_COMES, replace(place, bootstrap=address), asked, _made(directory))
            )
            groups[by].happen(Event.COLD)
        for number in range(options.joins):
            for by, group in groups.items():
                _await_phase(group.settled_ns, (number + 0.5) / options.joins)
                joined, left = group.happen(Event.JOIN), group.happen(Event.LEAVE)
                on_progress(
                    f"{number + 1} of {options.joins}, {by}: joined in {joined.settle_ms:,.0f} ms, "
                    f"left in {left.settle_ms:,.0f} ms"
                )
    rows = [
        {
            "event": str(event),
            "coordinated_by": by,
            "n": told["n"],
            "settle_p50_ms": told["settle_ms"]["p50"],
            "settle_max_ms": told["settle_ms"]["max"],
            "partition_seconds": told["partition_seconds"],
        }
        for event in (Event.JOIN, Event.LEAVE)
        for by, group in groups.items()
        for told in (summary(group.costs[event]),)
    ]
    drawn = [Drawing(("event", "coordinated_by"), "settle_p50_ms", "settle_max_ms")]
    medians = {by: summary(group.costs[Event.JOIN])["settle_ms"]["p50"] for by, group in groups.items()}
    return [Table("joins", rows, drawn)], join_bars(medians)


def _await_phase(settled_ns: int, phase: float) -> None:
    """Waits until the fraction ``phase`` of the interval between the members' heartbeats has passed."""
    since_s = (time.monotonic_ns() - settled_ns) / 1e9
    time.sleep((phase * _HEARTBEATS_S - since_s) % _HEARTBEATS_S)


def join_bars(medians: dict[str, float]) -> list[Bar]:
    """Returns the target. ``medians`` maps each coordinator to the median time of a join (ms)."""
    if KAFKA not in medians:
        return []
    ours, theirs = medians[INSTANCE], medians[KAFKA]
    return [Bar("a member joins (median)", f"at most Kafka's: {theirs:,.0f} ms", f"{ours:,.0f} ms", ours <= theirs)]


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory
