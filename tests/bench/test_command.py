"""The options of ``kafka-coord bench spark``, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_coord.dev.bench.report import Bar, BenchReport, Setup, Table
from kafka_coord.dev.bench.spark import run as bench
from kafka_coord.dev.bench.spark.options import Part, SparkBenchOptions
from kafka_coord.errors import DevClusterError
from tests.cli.running import run, started

_TABLE = Table(
    "throughput", [{"source": "kafka_coord", "rows_per_s": 120_000}, {"source": "kafka", "rows_per_s": 60_000}]
)
_BARS = [Bar("rows/s", "more", "2 times", True), Bar("memory", "flat", "not measured", None)]

Calls = list[tuple[SparkBenchOptions, Path]]


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Calls]:
    """Measures nothing, and ends with this error or with a report. Records its arguments."""

    def end(error: BaseException | None = None) -> Calls:
        calls: Calls = []

        def measure(options: SparkBenchOptions, directory: Path, _progress: object) -> BenchReport:
            calls.append((options, directory))
            if error is not None:
                raise error
            return BenchReport.of("spark", Setup.here(kafka="3.9.2"), options, [_TABLE], _BARS, ["a remark"])

        monkeypatch.setattr(bench, "run_spark_bench", measure)
        return calls

    return end


def test_the_report_says_on_what_it_ran_what_was_found_and_which_bars_that_meets(ending) -> None:
    calls = ending()

    table, document = run("bench", "spark"), run("bench", "spark", "-o", "json").json()

    assert "kafka 3.9.2" in table.out
    assert "a remark" in table.out
    assert "120000" in table.out
    assert "not measured" in table.out
    assert document["throughput"][1] == {"source": "kafka", "rows_per_s": 60_000}
    assert document["bars"][0]["met"] is True
    assert document["settings"]["partitions"] == [1, 12]
    assert document["setup"]["cpus"] >= 1
    assert not calls[0][1].exists(), "its directory is removed"


def test_the_bench_measures_what_its_options_say(ending, tmp_path: Path) -> None:
    calls = ending()
    directory = str(tmp_path / "bench")

    run("bench", "spark", "--rows", "1000", "--repeat", "2", "--only", "soak", "--minutes", "60", "--dir", directory)

    ((options, where),) = calls
    assert (options.rows, options.repeat, options.parts, options.minutes) == (1_000, 2, (Part.SOAK,), 60)
    assert where == tmp_path / "bench"


def test_a_failure_is_reported_with_the_directory_of_the_logs(ending, tmp_path: Path) -> None:
    ending(DevClusterError("no Java"))

    ran = run("bench", "spark", "--dir", str(tmp_path))

    assert ran.code == 9
    assert "kafka-coord: no Java" in ran.err
    assert f"logs are in {tmp_path}" in ran.err


def test_an_interrupt_leaves_no_directory_behind(ending) -> None:
    calls = ending(KeyboardInterrupt())

    assert run("bench", "spark").code == 130
    assert not calls[0][1].exists()


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_small_run_measures_everything_once(tmp_path: Path) -> None:
    with started("bench", "spark", "--smoke", "--dir", str(tmp_path), "-o", "json") as running:
        ran = running.ended(within_s=540)

    found = ran.json()
    peers = {"kafka_coord", "kafka"} if not found["notes"] else {"kafka_coord"}
    assert {row["source"] for row in found["throughput"]} == peers, found["notes"]
    assert all(row["rows_per_s"] > 0 and row["cpu_s"] > 0 and row["peak_mib"] > 0 for row in found["throughput"])
    assert {row["source"] for row in found["micro_batches"]} == peers
    assert [(row["trigger_ms"], row["stops"] >= 1) for row in found["stop_fetcher_to_acknowledgement"]] == [(0, True)]
    assert found["bars"] == [], "so small a run is held against nothing"
