"""Measures how long a backup and a restore of many groups take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kafka_coord.dev.bench.group import zookeeper
from kafka_coord.dev.bench.report import Bar, BenchOptions, BenchReport, Drawing, Setup, Table
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.dev.cluster.zookeeper import ZooKeeperSettings
from kafka_coord.groups.backup import read_file, read_tree, write_file
from kafka_coord.groups.restore import plan_restore, restore
from kafka_coord.model import Assignment, Ledger, PartitionSet, TopicOfOffsets
from kafka_coord.model import json_fields as fields
from kafka_coord.model.sequences import parts
from kafka_coord.spark.session import find_java
from kafka_coord.zk import layout
from kafka_coord.zk.root import ClusterRecord, finish_tree, make_tree
from kafka_coord.zk.store import Create, Op, Store

T = TypeVar("T")

_TOPIC, _ID, _CONSUMERS = "flights", "TMyOC9fMQO2RvZzC_cfMOw", 2
_AT_MOST_S = 30.0


@dataclass(frozen=True, slots=True)
class BackupOptions(BenchOptions):
    """How many groups, and how many offsets each has."""

    groups: int = 10_000
    offsets: int = 10


SMOKE = BackupOptions(groups=20, offsets=3, judged=False)


def run_backup_bench(options: BackupOptions, directory: Path, on_progress: OnProgress) -> BenchReport:
    """Runs the benchmark in ``directory``, from one ZooKeeper to another. Raises
    :class:`~kafka_coord.errors.KafkaCoordError`."""
    setup = Setup.here(java=find_java().version)
    settings, file, took = (
        ZooKeeperSettings(tick_ms=2_000, heap_mb=512),
        directory / "bench.backup",
        dict[str, tuple[float, float]](),
    )
    on_progress("starting ZooKeeper")
    with zookeeper(directory / "old", settings) as (server, store):
        make_tree(store, ClusterRecord.new(store, 1))
        _fill(store, options, on_progress)
        made = _timed(took, "read", lambda: read_tree(store, [server.connect_string], ""))
        _timed(took, "write the file", lambda: write_file(file, made))
    with zookeeper(directory / "new", settings) as (_, store):
        found, checksum = _timed(took, "read the file", lambda: read_file(file))
        _timed(took, "restore", lambda: finish_tree(store, restore(store, plan_restore(found, checksum))))
    rows = [{"step": step, "s": round(wall_s, 2), "cpu_s": round(cpu_s, 2)} for step, (wall_s, cpu_s) in took.items()]
    backup_s = took["read"][0] + took["write the file"][0]
    restore_s = took["read the file"][0] + took["restore"][0]
    bars = [Bar.at_most("backup", _AT_MOST_S, backup_s, " s"), Bar.at_most("restore", _AT_MOST_S, restore_s, " s")]
    further = {"file_mb": round(file.stat().st_size / 1e6, 1)}
    return BenchReport.of(
        "backup", setup, options, [Table("steps", rows, [Drawing(("step",), "s")])], bars, (), further
    )


def _timed(took: dict[str, tuple[float, float]], step: str, work: Callable[[], T]) -> T:
    began, cpu_s = time.perf_counter(), time.process_time()
    found = work()
    took[step] = time.perf_counter() - began, time.process_time() - cpu_s
    return found


def _fill(store: Store, options: BackupOptions, on_progress: OnProgress) -> None:
    """Writes what a group at rest has: a target, two ledgers, a history, and its offsets."""
    for some in parts([f"g{number:05}" for number in range(options.groups)], 20):
        store.multi([op for group in some for op in _group(group, options.offsets)])
    on_progress(f"wrote {options.groups:,} groups with {options.offsets} offsets each")


def _group(group: str, offsets: int) -> list[Op]:
    members = {f"c{number}": PartitionSet({_TOPIC: range(number, offsets, _CONSUMERS)}) for number in range(_CONSUMERS)}
    target = Assignment(7, 3, "0" * 32, "sticky", "member c1 joined", members, timestamp_ms=1)
    ledgers = [Ledger(name, 4_000, owned, process="0123456789abcdef") for name, owned in members.items()]
    history = fields.dump({"version": 1, "decisions": [{"generation": 7, "reason": "member c1 joined"}] * 5})
    return [
        Create(layout.group(group)),
        *(Create(path) for path in (layout.ids(group), layout.channels(group), layout.owners(group))),
        Create(layout.assignment(group), target.to_bytes()),
        Create(layout.history(group), history),
        *(Create(layout.ledger(group, one.consumer), one.to_bytes()) for one in ledgers),
        Create(layout.offsets(group)),
        Create(layout.topic_offsets(group, _TOPIC), TopicOfOffsets(_ID, offsets).data),
        *(Create(layout.offset(group, _TOPIC, number), b"123456789") for number in range(offsets)),
    ]
