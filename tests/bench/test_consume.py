"""The bench of the consumer: the contents of its report, how it is judged, and a small run of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_coord.dev.bench.consume.reading import Read, ReadMode
from kafka_coord.dev.bench.consume.run import SMOKE, bars, latency, throughput
from tests.cli.running import run


def read(way: ReadMode, records_per_s: float) -> Read:
    return Read(way, 1_000, 1_000 / records_per_s, 0.002)


def test_the_rate_of_each_way_is_reported_as_a_share_of_the_bare_client():
    found = [
        read(ReadMode.BARE, 1_000),
        read(ReadMode.BARE, 3_000),
        read(ReadMode.BARE, 2_000),
        read(ReadMode.BATCH, 1_900),
    ]
    bare, batch = throughput(found).rows
    assert (bare["way"], bare["n"], bare["records_per_s"], bare["share_of_bare"]) == ("bare", 3, 2_000, 1.0)
    assert (batch["way"], batch["share_of_bare"], batch["cpu_s_per_million"]) == ("batch", 0.95, 2.0)


@pytest.mark.parametrize(
    ("batch", "messages", "iteration", "met"),
    [(900, 899, 600, [True, False, True, None]), (899, 900, 599, [False, True, False, None])],
)
def test_the_bars_are_shares_of_the_bare_client(
    batch: float, messages: float, iteration: float, met: list[bool | None]
):
    ways = {ReadMode.BARE: 1_000, ReadMode.BATCH: batch, ReadMode.MESSAGES: messages, ReadMode.ITERATION: iteration}
    assert [bar.met for bar in bars([read(way, rate) for way, rate in ways.items()])] == met


def test_a_way_that_was_not_measured_meets_and_misses_nothing():
    assert [bar.met for bar in bars([read(ReadMode.BARE, 1_000)])] == [None, None, None, None]


def test_latency_is_measured_for_each_record():
    (row,) = latency([Read(ReadMode.BARE, 4, 1.0, 0.1, [1.0, 2.0, 3.0, 50.0])]).rows
    assert (row["records"], row["median_ms"], row["p99_ms"]) == (4, 2.5, 50.0)


@pytest.mark.kafka
@pytest.mark.zookeeper
def test_a_small_run_reads_every_record_in_every_way(tmp_path: Path):
    found = run("bench", "consume", "--smoke", "--dir", str(tmp_path), "-o", "json").json()
    assert [row["way"] for row in found["throughput"]] == [str(way) for way in ReadMode]
    assert all(row["records_per_s"] > 0 and row["cpu_s_per_million"] > 0 for row in found["throughput"])
    wanted = SMOKE.records_per_s * SMOKE.seconds
    assert [row["records"] for row in found["latency"]] == [wanted] * 3
    assert all(0 < row["median_ms"] < 60_000 for row in found["latency"])
    assert found["bars"] == []
