"""Measures what thousands of members that only send heartbeats cost an instance."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

from kafka_coord.dev.bench.kafka_groups.client import RawClient
from kafka_coord.dev.bench.kafka_groups.lanes import Lane, pace
from kafka_coord.dev.bench.kafka_groups.members import HEARTBEAT, Member, join_all
from kafka_coord.dev.bench.kafka_groups.options import KafkaGroupsOptions
from kafka_coord.dev.bench.kafka_groups.servers import Servers
from kafka_coord.dev.bench.report import Bar, Spread, Table
from kafka_coord.dev.bench.usage import cpu_meter, open_files
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.wire.messages import message

_API_VERSIONS, _EACH, _EVERY_S, _TIMES = 3, 10, 3.0, 5
_BAR_CONNECTIONS, _BAR_PERCENT, _BAR_MIB = 5_000, 25.0, 400.0


def measure_idle(
    servers: Servers, options: KafkaGroupsOptions, on_progress: OnProgress
) -> tuple[list[Table], list[Bar]]:
    """Measures groups of ten members. As with a real client, each connection begins with ApiVersions, which makes the
    instance open a connection to the broker, too.
    """
    instance, seconds = servers.instance, _TIMES * options.seconds
    with ExitStack() as running:
        on_progress(f"{options.connections:,} members join")
        members = []
        for number in range(options.connections):
            client = running.enter_context(RawClient(instance.address))
            about = message("ApiVersionsRequest")(client_software_name="bench", client_software_version="1")
            client.ask("ApiVersions", _API_VERSIONS, about)
            members.append(Member(client, f"idle-{number // _EACH}"))
        join_all(members)
        lanes = [Lane.of(member.client, "Heartbeat", HEARTBEAT, member.heartbeat()) for member in members]
        on_progress(f"a heartbeat every {_EVERY_S:g} s each, for {seconds:g} s")
        cpu_s, began = cpu_meter(instance.process.pid), time.monotonic()
        ms = pace(lanes, len(lanes) / _EVERY_S, seconds)
        percent = 100 * cpu_s() / (time.monotonic() - began)
        spread = Spread.some(ms)
        row = {
            "connections": len(lanes),
            "heartbeats": spread.n,
            "cpu_percent": round(percent, 1),
            "memory_mib": round(instance.memory_mib()),
            "files": open_files(instance.process.pid),
            "p50_ms": round(spread.median, 2),
            "p99_ms": round(spread.p99, 2),
        }
    return [Table("idle", [row])], idle_bars(row)


def idle_bars(row: dict[str, Any]) -> list[Bar]:
    enough, percent, mib = row["connections"] >= _BAR_CONNECTIONS, row["cpu_percent"], row["memory_mib"]
    return [
        Bar.at_most(f"{_BAR_CONNECTIONS:,} idle members", _BAR_PERCENT, percent, " % of a core", counts=enough),
        Bar.at_most("memory with them", _BAR_MIB, mib, " MiB", counts=enough),
    ]
