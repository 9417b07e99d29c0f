"""Runs a cluster of three brokers with every kind of member, and asks the doctor again and again."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_coord.dev.bench.feeding import Feeding
from kafka_coord.dev.bench.healthy.lines import warnings_in
from kafka_coord.dev.bench.healthy.members import MANAGED, NATIVE, TOPIC, every_kind
from kafka_coord.dev.bench.report import Bar, BenchOptions, BenchReport, Setup, Table
from kafka_coord.dev.bench.waiting import awaited
from kafka_coord.dev.cluster.cluster import DevCluster
from kafka_coord.dev.cluster.coordinator import serve_command
from kafka_coord.dev.cluster.kafka import Broker, KafkaSettings
from kafka_coord.dev.cluster.ports import LOOPBACK, free_port
from kafka_coord.dev.cluster.process import ChildProcess, OnProgress
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.dev.demo.journal import read_journal
from kafka_coord.dev.demo.options import Kind
from kafka_coord.dev.demo.workforce import require_running, stop_all
from kafka_coord.errors import VerificationFailed
from kafka_coord.spark.session import find_java

_BROKERS, _PARTITIONS = 3, 12
_STARTS_S = 300.0
_DOCTOR_S = 120.0
_BEHIND_S = 10.0
"""How far behind a group may be when the examinations begin: the others have started meanwhile."""
_VALUES = tuple(f'{{"carrier":"{carrier}","arr_delay":{delay}}}'.encode() for carrier, delay in (("AA", 3), ("B6", -2)))


@dataclass(frozen=True, slots=True)
class HealthyOptions(BenchOptions):
    """The members work for ``minutes``, while ``records_per_s`` are written, once a second. The doctor examines the
    cluster every ``every_s`` seconds. Without ``spark``, there is no Spark query. With ``kraft``, the brokers run Kafka
    4.3."""

    minutes: float = 60.0
    every_s: float = 30.0
    records_per_s: int = 60
    spark: bool = True
    kraft: bool = False


SMOKE = HealthyOptions(minutes=0.2, every_s=5.0, spark=False)


def run_healthy_bench(options: HealthyOptions, directory: Path, on_progress: OnProgress) -> BenchReport:
    """Runs the cluster in ``directory``. Raises :class:`~kafka_coord.errors.KafkaCoordError`."""
    setup = Setup.here(java=find_java().version, kafka=KafkaSettings(kraft=options.kraft).kafka_version)
    with _started(directory, options, on_progress) as (cluster, members):
        on_progress(f"{len(members)} members work for {options.minutes:g} minutes")
        found = _examined(cluster, members, options, on_progress)
        # before the end, because py4j logs an ERROR when a Spark query is stopped between two micro-batches
        logs = sorted(cluster.directory.glob("coordinator-*/*.log")) + [member.log for member in members]
        warned = {log.stem: list(warnings_in(log.read_text("utf-8", "replace").splitlines())) for log in logs}
    return _report(setup, options, found, warned)


@contextmanager
def _started(
    directory: Path, options: HealthyOptions, on_progress: OnProgress
) -> Iterator[tuple[DevCluster, Sequence[ChildProcess]]]:
    channels = {number: f"{LOOPBACK}:{free_port()}" for number in range(1, _BROKERS + 1)}

    def serve(broker: Broker) -> Sequence[str]:
        more = ("--listen-channel", channels[broker.broker_id], "--managed-groups", f"{MANAGED}-.*")
        return [*serve_command(broker), *more, "--new-groups", f"native:{NATIVE}-.*"]

    with ExitStack() as running:
        cluster = running.enter_context(
            DevCluster(
                directory,
                brokers=_BROKERS,
                coordinators=True,
                coordinator_command=serve,
                kafka_settings=KafkaSettings(kraft=options.kraft, replication=_BROKERS, for_instances=True),
                on_progress=on_progress,
            )
        )
        TopicAdmin(cluster.bootstrap_servers).create(TOPIC, _PARTITIONS, replication=_BROKERS)
        running.enter_context(Feeding(cluster.bootstrap_servers, TOPIC, options.records_per_s, 1.0, _VALUES))
        at = cluster.directory / "members"
        at.mkdir(exist_ok=True)
        cast = every_kind(spark=options.spark, kraft=options.kraft)
        addresses = (cluster.zookeeper, ",".join(channels.values()), cluster.instance_servers)
        members = [ChildProcess(one.name, one.command(at, *addresses), at / f"{one.name}.log") for one in cast]
        running.callback(stop_all, members)
        for kind in (Kind.SPARK, *(kind for kind in Kind if kind is not Kind.SPARK)):
            # Spark first, and alone: it fails if a busy machine does not start its Python worker within 10 s
            chosen = {one.name: process for one, process in zip(cast, members, strict=True) if one.kind is kind}
            for process in chosen.values():
                process.start()
            awaited(lambda: _all_read(at, chosen), _STARTS_S, f"{kind} members to read records", every_s=1.0)  # noqa: B023  called at once
        most = round(_BEHIND_S * options.records_per_s)
        awaited(lambda: _most_lag(cluster) <= most, _STARTS_S, "every group to catch up", every_s=1.0)
        yield cluster, members


def _all_read(directory: Path, members: Mapping[str, ChildProcess]) -> bool:
    require_running(members.values())
    return all(read_journal(directory / f"{name}.jsonl", name).runs for name in members)


def _most_lag(cluster: DevCluster) -> float:
    """Returns how many records the group that is furthest behind has to read, which is infinite if one is unknown."""
    rows = json.loads(_ran(cluster, "groups", "list", "--lag", "-o", "json").stdout)
    return max(math.inf if row["lag"] is None else row["lag"] for row in rows)


def _ran(cluster: DevCluster, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as an operator would."""
    return subprocess.run(
        [sys.executable, "-m", "kafka_coord.cli.main", *command, "--zookeeper", cluster.zookeeper],
        capture_output=True,
        text=True,
        timeout=_DOCTOR_S,
        check=False,
    )


def _examined(
    cluster: DevCluster, members: Sequence[ChildProcess], options: HealthyOptions, on_progress: OnProgress
) -> Mapping[str, Any]:
    """Examines the cluster until the time is over, or until Ctrl-C. Returns the number of examinations, and how often
    each finding appeared."""
    began, examinations, seen = time.monotonic(), 0, Counter[str]()
    due = began
    try:
        while (now := time.monotonic()) < began + options.minutes * 60 or not examinations:
            require_running(members)
            for finding in _findings(cluster):
                seen[finding] += 1
                on_progress(f"after {now - began:.0f} s: {finding}")
            examinations += 1
            due = max(due + options.every_s, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
    except KeyboardInterrupt:
        on_progress("interrupted: this is what was found until now")
    return {"minutes": (time.monotonic() - began) / 60, "examinations": examinations, "findings": seen}


def _findings(cluster: DevCluster) -> Iterator[str]:
    """Yields what ``kafka-coord doctor --strict`` counts."""
    try:
        ran = _ran(cluster, "doctor", "--strict", "-o", "json")
    except subprocess.TimeoutExpired:
        yield f"error: doctor: did not end within {_DOCTOR_S:.0f} s"
        return
    try:
        documents = json.loads(ran.stdout)
    except ValueError:
        raise VerificationFailed(f"the doctor ended with code {ran.returncode}: {ran.stderr.strip()[-500:]}") from None
    yield from (
        f"{one['severity']}: {one['check']}: {one['what']}"
        for one in documents
        if one["severity"] in {"warning", "error"}
    )


def _report(
    setup: Setup, options: HealthyOptions, found: Mapping[str, Any], warned: Mapping[str, Sequence[str]]
) -> BenchReport:
    lines = [(name, line) for name, these in warned.items() for line in these]
    row = {
        "minutes": round(found["minutes"], 1),
        "examinations": found["examinations"],
        "members": len(every_kind(spark=options.spark, kraft=options.kraft)),
        "findings": sum(found["findings"].values()),
        "warnings": len(lines),
    }
    notes = [f"{count} times: {finding}" for finding, count in found["findings"].most_common()]
    notes += [f"{name}: {line}" for name, line in lines]
    return BenchReport.of("healthy", setup, options, [Table("healthy", [row])], bars(row), notes)


def bars(row: Mapping[str, Any]) -> list[Bar]:
    """Returns the targets: no finding and no warning."""
    return [Bar.at_most("findings", 0, row["findings"]), Bar.at_most("warnings", 0, row["warnings"])]
