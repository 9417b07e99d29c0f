"""Measures CLI commands on thousands of groups, one process per command, and how long it takes to determine all lag
metrics."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

from kafka_coord.dev.bench.kafka_groups.members import commit_to_each
from kafka_coord.dev.bench.kafka_groups.options import KafkaGroupsOptions
from kafka_coord.dev.bench.kafka_groups.servers import Servers
from kafka_coord.dev.bench.report import Bar, Table
from kafka_coord.dev.bench.usage import cpu_meter
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.errors import BrokerError
from kafka_coord.monitor.lag_metrics import measure_lags
from kafka_coord.zk import connect, layout
from kafka_coord.zk.store import Create, Store

_TOPIC, _PARTITIONS, _OFFSET = "listed", 10, 42
_WITHIN_S = 600.0


def measure_listing(
    servers: Servers, options: KafkaGroupsOptions, on_progress: OnProgress
) -> tuple[list[Table], list[Bar]]:
    """Measures client-assigned groups with ten offsets each. To measure lag, adds as many managed groups, also with ten
    offsets each. There is no target, because only humans wait for these commands."""
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
    on_progress(f"writing as many managed groups, to measure the lag of {2 * len(groups):,} groups")
    store = connect(servers.zookeeper)
    try:
        _write_managed(store, len(groups))
        rows += [_measured(("groups", "list", "--lag"), servers)[0], _sampled(store, servers)]
        rows[-1]["groups"] = rows[-2]["groups"] = 2 * len(groups)
    finally:
        store.close()
    return [Table("listing", rows)], []


def _write_managed(store: Store, count: int) -> None:
    """Writes managed groups without members, each with the same offsets as the client-assigned groups."""
    for number in range(count):
        group = f"managed-{number}"
        parents = [layout.group(group), layout.ids(group), layout.owners(group), layout.channels(group)]
        parents += [layout.offsets(group), layout.topic_offsets(group, _TOPIC)]
        offsets = (Create(layout.offset(group, _TOPIC, number), b"%d" % _OFFSET) for number in range(_PARTITIONS))
        store.multi([*map(Create, parents), *offsets])


def _sampled(store: Store, servers: Servers) -> dict[str, Any]:
    """Measures the lags once in this process, as an elected instance with ``serve.lag_metrics_groups`` would."""
    instance_s, before, began = cpu_meter(servers.instance.process.pid), time.process_time(), time.monotonic()
    sample = measure_lags(store, {}, most=100)
    return {
        "command": "serve.lag_metrics_groups, once",
        "took_s": round(time.monotonic() - began, 2),
        "cpu_s": round(time.process_time() - before, 2),
        "instance_cpu_s": round(instance_s(), 2),
        "left_out": sample.left_out,
    }


def _measured(command: tuple[str, ...], servers: Servers) -> tuple[dict[str, Any], Any]:
    """Runs the command and times the whole process. Returns the figures and the output."""
    arguments = [sys.executable, "-m", "kafka_coord.cli.main", *command, "-z", servers.zookeeper, "-o", "json"]
    instance_s, before, began = cpu_meter(servers.instance.process.pid), _children_s(), time.monotonic()
    ran = subprocess.run(arguments, capture_output=True, timeout=_WITHIN_S, check=False)
    took_s = time.monotonic() - began
    if ran.returncode:
        raise BrokerError(f"{' '.join(command)} exited with code {ran.returncode}: {ran.stderr.decode()[-500:]}")
    row = {
        "command": " ".join(word for word in command if not word.startswith("listed-")),
        "took_s": round(took_s, 2),
        "cpu_s": round(_children_s() - before, 2),
        "instance_cpu_s": round(instance_s(), 2),
    }
    return row, json.loads(ran.stdout)


def _children_s() -> float:
    """Returns the CPU seconds of child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
