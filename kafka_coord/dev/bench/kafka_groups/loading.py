"""Measures how long an instance takes to start with very many records in one partition of the groups log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

from kafka_coord.dev.bench.kafka_groups.client import RawClient, without_errors
from kafka_coord.dev.bench.kafka_groups.members import (
    FETCH,
    WIDE_TOPIC,
    await_coordinator,
    commit_to_each,
    offset_fetch,
)
from kafka_coord.dev.bench.kafka_groups.options import KafkaGroupsOptions
from kafka_coord.dev.bench.kafka_groups.servers import Servers, groups_in, listens
from kafka_coord.dev.bench.report import Bar, Table
from kafka_coord.dev.bench.usage import cpu_meter, megabytes
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.grouplog.term import TOPIC

_PARTITION, _EACH = 7, 100
_OFFSET = 42
_BAR_RECORDS, _BAR_S = 1_000_000, 10.0


def measure_loading(
    servers: Servers, options: KafkaGroupsOptions, on_progress: OnProgress
) -> tuple[list[Table], list[Bar]]:
    """Commits offsets under distinct keys, a hundred per group, and measures how long a restarted instance takes to
    load them."""
    instance = servers.instance
    groups = list(islice(groups_in(_PARTITION), -(-options.records // _EACH)))
    on_progress(f"committing {len(groups) * _EACH:,} offsets")
    servers.make_topic(WIDE_TOPIC, _EACH)
    commit_to_each(instance.address, groups, WIDE_TOPIC, _EACH, _OFFSET)
    instance.process.stop()
    instance.process.start()
    instance.process.wait_until(lambda: listens(instance), 60.0)
    cpu_s, began = cpu_meter(instance.process.pid), time.monotonic()
    await_coordinator(instance.address, groups[-1:], within_s=300.0)
    row = {
        "records": len(groups) * _EACH,
        "loaded_s": round(time.monotonic() - began, 2),
        "cpu_s": round(cpu_s(), 2),
        "memory_mib": round(instance.memory_mib()),
        "log_mb": megabytes(servers.broker.directory / "data" / f"{TOPIC}-{_PARTITION}"),
        "wrong_offsets": wrong_offsets(instance.address, groups, WIDE_TOPIC, _EACH, _OFFSET),
    }
    on_progress(f"{row['records']:,} records loaded in {row['loaded_s']} s")
    return [Table("loading", [row])], loading_bars(row)


def wrong_offsets(address: str, groups: Sequence[str], topic: str, partitions: int, offset: int) -> int:
    """Returns how many of the groups' stored offsets differ from ``offset``."""
    wrong = 0
    with RawClient(address) as client:
        for at in range(0, len(groups), _EACH):
            answer = client.ask("OffsetFetch", FETCH, offset_fetch(groups[at : at + _EACH], partitions, topic))
            found = [
                part.committed_offset
                for group in without_errors(answer, "OffsetFetch").groups
                for one in group.topics
                for part in one.partitions
            ]
            wrong += sum(one != offset for one in found)
            wrong += len(groups[at : at + _EACH]) * partitions - len(found)
    return wrong


def loading_bars(row: dict[str, Any]) -> list[Bar]:
    enough = row["records"] >= _BAR_RECORDS
    return [
        Bar.at_most(f"{_BAR_RECORDS:,} records loaded", _BAR_S, row["loaded_s"], " s", counts=enough),
        Bar.at_most("offsets that differ from the committed ones", 0, row["wrong_offsets"]),
    ]
