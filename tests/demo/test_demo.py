"""A small run of the demo: real servers, real processes, real kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from kafka_coord.dev.cluster.record import processes_mentioning
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

DEMO = [sys.executable, "-m", "kafka_coord.cli.main", "demo", "--quick", "--no-live"]
TWO_BROKERS = ("--brokers", "2")
"""They start sooner; the long tests have three."""


def play(directory: Path, *options: str, within_s: float = 280) -> str:
    """What the demo wrote. Its report is in ``directory``, and nothing that it started is left."""
    done = subprocess.run(
        [*DEMO, *options, "--dir", str(directory / "run"), "--report", str(directory / "report.html")],
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert processes_mentioning(directory) == []
    return done.stdout


GROUP_PLAYED = (
    *("joins and takes its share", "(kill -9) while it owns", "is elected, epoch", "grows from 12 to 16"),
    *("leaves the group cleanly", "39,000 records consumed"),
)


KRAFT = pytest.param(("--kraft",), "Kafka 4.3.0 in KRaft mode", marks=pytest.mark.long, id="kraft")
IN_EACH_MODE = pytest.mark.parametrize(("mode", "servers"), [pytest.param((), "Kafka 3.9.2", id="zookeeper"), KRAFT])


@IN_EACH_MODE
def test_a_group_plays_through_kills_and_growth(tmp_path: Path, mode: tuple[str, ...], servers: str) -> None:
    written = play(tmp_path, *TWO_BROKERS, *mode)

    assert f"brokers of {servers}, with a" in (tmp_path / "report.html").read_text("utf-8")
    for happened in (*GROUP_PLAYED, f"brokers of {servers}", str(tmp_path / "report.html")):
        assert happened in written


@pytest.mark.spark
@pytest.mark.long
@IN_EACH_MODE
def test_spark_and_a_plain_consumer_play_beside_the_first_group(
    tmp_path: Path, mode: tuple[str, ...], servers: str
) -> None:
    written = play(tmp_path, "--spark", *mode)

    first, second = written.index("consumer-4 joins"), written.index("without Spark, joins")
    assert written.index("two Spark applications start") < first < second  # they start before the first group plays
    sparks = ("spark-1 is killed (kill -9)", "spark-3 joins", "24,000 rows", "Spark's report matches the input")
    for happened in (*GROUP_PLAYED, *sparks):
        assert happened in written
    page = (tmp_path / "report.html").read_text("utf-8").removeprefix("<!DOCTYPE html>\n")
    assert ET.fromstring(page).find(".//h1") is not None  # noqa: S314 - written by the demo
    assert "Busiest routes" in page


@pytest.mark.long
@IN_EACH_MODE
def test_stock_clients_play_through_a_killed_coordinator_and_one_that_moves(
    tmp_path: Path, mode: tuple[str, ...], servers: str
) -> None:
    written = play(tmp_path, "--clients", "kafka", *mode)

    for happened in (
        "joins and takes its share",
        "(kill -9) while it owns",
        "read the group and its offsets from the log",
        "the group moves with it, to the instance there",
        "grows from 6 to 8",
        "leaves the group cleanly",
        "26,000 records consumed",
        "commits acknowledged, all kept",
    ):
        assert happened in written
    assert "at-least-once delivery" in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(420)
def test_every_kind_of_consumer_works_in_one_group_and_one_of_each_is_killed(tmp_path: Path) -> None:
    written = play(tmp_path, "--clients", "mixed", within_s=400)

    assert written.count("(kill -9) while it owns") == 4
    for happened in ("takes its share", "is elected, epoch", "grows from 12 to 16", "leaves the group cleanly"):
        assert happened in written


def test_ctrl_c_in_the_middle_stops_everything(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*DEMO, *TWO_BROKERS, "--dir", str(tmp_path / "run"), "--report", str(tmp_path / "report.html")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as demo:
        try:
            assert demo.stdout is not None
            for line in demo.stdout:
                if "joins and takes its share" in line:
                    break
            os.kill(demo.pid, signal.SIGINT)
            _, errors = demo.communicate(timeout=60)
        finally:
            demo.kill()

    assert demo.returncode == 130, errors
    assert "interrupted" in errors
    eventually(lambda: processes_mentioning(tmp_path) == [])
    assert not (tmp_path / "report.html").exists()
