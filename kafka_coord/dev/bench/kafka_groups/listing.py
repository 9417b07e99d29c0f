"""Measures operators' commands about thousands of client-assigned groups, each as a process of its own."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

from kafka_coord.dev.bench.kafka_groups.members import commit_to_each
from kafka_coord.dev.bench.kafka_groups.options import KafkaGroupsOptions
from kafka_coord.dev.bench.kafka_groups.servers import Servers, Usage
from kafka_coord.dev.bench.report import Bar, Table
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.errors import BrokerError

_TOPIC, _PARTITIONS, _OFFSET = "listed", 10, 42
_WITHIN_S = 600.0


def measure_listing(
    servers: Servers, options: KafkaGroupsOptions, on_progress: OnProgress
) -> tuple[list[Table], list[Bar]]:
    """Commits ten offsets to each group. No bar: nobody waits for these commands but a person."""
    servers.make_topic(_TOPIC, _PARTITIONS)
    groups = [f"listed-{number}" for number in range(options.groups)]
    on_progress(f"committing offsets to {len(groups):,} groups")
    commit_to_each(servers.instance.address, groups, _TOPIC, _PARTITIONS, _OFFSET)
    rows = []
    wanted = set(groups)
    for command, rows_expected in (
        (("groups", "list"), len(groups)),
        (("groups", "describe", groups[-1]), _PARTITIONS),
        (("groups", "export", "--to-kafka", *groups), len(groups) * _PARTITIONS),
    ):
        row, found = _measured(command, servers)
        shown = found["offsets"] if isinstance(found, dict) else [one for one in found if one["group"] in wanted]
        if len(shown) != rows_expected:
            raise BrokerError(f"{row['command']} shows {len(shown)} rows, not {rows_expected}")
        on_progress(f"{row['command']}: {row['took_s']} s")
        rows.append(row | {"groups": len(groups)})
    return [Table("listing", rows)], []


def _measured(command: tuple[str, ...], servers: Servers) -> tuple[dict[str, Any], Any]:
    """Times the command from its start to its end. Returns its figures, and its output."""
    arguments = [sys.executable, "-m", "kafka_coord.cli.main", *command, "-z", servers.zookeeper, "-o", "json"]
    instance, before, began = Usage.of(servers.instance.process.pid), _children_s(), time.monotonic()
    ran = subprocess.run(arguments, capture_output=True, timeout=_WITHIN_S, check=False)
    took_s = time.monotonic() - began
    if ran.returncode:
        raise BrokerError(f"{' '.join(command)} ended with {ran.returncode}: {ran.stderr.decode()[-500:]}")
    row = {
        "command": " ".join(word for word in command if not word.startswith("listed-")),
        "took_s": round(took_s, 2),
        "cpu_s": round(_children_s() - before, 2),
        "instance_cpu_s": round(instance.cpu_s(), 2),
    }
    return row, json.loads(ran.stdout)


def _children_s() -> float:
    """CPU of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
