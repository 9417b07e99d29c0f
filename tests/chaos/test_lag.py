"""Tests the lag in chaos runs, with evidence written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kafka_coord.errors import MalformedValue
from kafka_coord.spark.jobs import Evidence, HeldPartition, ReadPosition
from tests.chaos.lag import RunEvidence, read_run_evidence, write_lag
from tests.chaos.night import Night
from tests.spark.conftest import spark

__all__ = ["spark"]


def at(seconds: float, offset: int, group: str = "") -> ReadPosition:
    return ReadPosition("run", group, "flights", 0, offset, round(seconds * 1000))


def held(consumer: str, begin_ms: int, end_ms: int | None) -> HeldPartition:
    return HeldPartition("run", "delays", "flights", 0, consumer, begin_ms, end_ms, "stopped", 1)


@pytest.mark.spark
@pytest.mark.long
def test_lag_is_the_produced_minus_the_committed_offset_by_owner(spark: Any, tmp_path: Path) -> None:
    logged = Evidence(
        holds=[held("c1", 0, 10_000), held("c2", 10_040, 25_000), held("c1", 31_000, None)],
        positions=[at(2, 90, "delays"), at(9, 150, "delays"), at(35, 880, "delays")],
    )
    produced = [at(1, 100), at(8, 200), at(15, 300), at(39, 900)]

    found = write_lag(spark, [RunEvidence(logged, produced)], tmp_path, every_s=10)

    lag = {(row["begin"].second, row["consumer"]): row["lag"] for row in pq.read_table(found / "lag").to_pylist()}
    assert lag == {(0, "c1"): 50, (10, "c2"): 150, (20, "(nobody)"): 150, (30, "c1"): 20}
    worst = {row["consumer"]: (row["most"], row["at"].second) for row in pq.read_table(found / "laggards").to_pylist()}
    assert worst == {"c1": (50, 0), "c2": (150, 10), "(nobody)": (150, 20)}


def test_the_ends_of_partitions_come_from_the_runs_journal(night: Night) -> None:
    night.judged()  # writes the journals
    run = json.loads((night.directory / "run.json").read_text())
    written = [json.loads(line) for line in (night.directory / "produced.jsonl").read_text().splitlines()]

    found = read_run_evidence(night.directory)

    ends: dict[tuple[str, int], int] = {}
    for line in written:
        for topic, partition, first, size, _ in line["r"]:
            ends[topic, partition] = max(ends.get((topic, partition), 0), first + size)
    latest: dict[tuple[str, int], int] = {}
    for one in found.produced:
        latest[one.topic, one.partition] = max(latest.get((one.topic, one.partition), 0), one.offset)
        assert one.at_ms >= run["started_wall"] * 1000
    assert latest == ends


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(MalformedValue, match=r"run\.json"):
        read_run_evidence(tmp_path)
