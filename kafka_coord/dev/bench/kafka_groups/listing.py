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
from kafka_coord.groups.group import AgeBy
from kafka_coord.groups.lag import LagService
from kafka_coord.groups.next_records import next_records_of
from kafka_coord.kafka.librdkafka import produce
from kafka_coord.monitor.metrics import measure_lags
from kafka_coord.settings import ServeSettings
from kafka_coord.zk import connect, layout
from kafka_coord.zk.store import Create, SetData, Store

_TOPIC, _PARTITIONS, _OFFSET = "listed", 10, 42
_WITHIN_S = 600.0
_ROUNDS, _INTERVAL_S = 5, ServeSettings().lag_metrics_interval_ms / 1000
_RECORDS_EACH = 500
_RECORDS = 4 * _RECORDS_EACH * _PARTITIONS
_BAR_GROUPS, _BAR_PERCENT = 1_000, 2.0


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
        on_progress("measuring how old the lag is")
        ages = _ages(store, servers, len(groups))
    finally:
        store.close()
    percent = ages["age_cpu_percent"] if ages["groups"] <= _BAR_GROUPS else None
    bar = Bar.at_most(f"age of the lag, up to {_BAR_GROUPS:,} groups, of a core", _BAR_PERCENT, percent, " %")
    return [Table("listing", rows), Table("lag in time", [ages])], [bar]


def _ages(store: Store, servers: Servers, count: int) -> dict[str, Any]:
    """Measures all lags without and with their age, as an elected instance with ``serve.lag_metrics_groups`` does at
    its interval. In the meantime, records are written, and each managed group reads one of each partition."""
    records = (record for record in [(None, b"x" * 100)] * _RECORDS)
    produce(servers.broker.address, _TOPIC, records, partitions=range(_PARTITIONS))
    plain, aged, spent_s = LagService(), LagService(next_records=next_records_of(store, {})), {False: 0.0, True: 0.0}
    for moved in range(1, _ROUNDS + 1):
        _move_managed(store, count, moved)
        produce(servers.broker.address, _TOPIC, [(None, b"x")] * _PARTITIONS, partitions=range(_PARTITIONS))
        for service in (plain, aged):
            before = time.process_time()
            sample = measure_lags(store, {}, most=2 * count, service=service)
            spent_s[service is aged] += time.process_time() - before
    cpu_s = (spent_s[True] - spent_s[False]) / _ROUNDS
    return {
        "groups": 2 * count,
        "by_timestamp": sum(row.lag_s_by is AgeBy.TIMESTAMP for row in sample.rows),
        "lag_cpu_s": round(spent_s[False] / _ROUNDS, 2),
        "age_cpu_s": round(cpu_s, 2),
        "age_cpu_percent": round(100 * cpu_s / _INTERVAL_S, 2),
    }


def _move_managed(store: Store, count: int, moved: int) -> None:
    for number in range(count):
        group, value = f"managed-{number}", b"%d" % (_OFFSET + number % _RECORDS_EACH + moved)
        store.multi([SetData(layout.offset(group, _TOPIC, at), value) for at in range(_PARTITIONS)])


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
