"""Tests of sinks that store every record once, despite repeats, other batch borders, several writers and crashes. They
use real Spark, but no broker."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import resource
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kafka_coord.errors import MalformedValue, NotFound, RequestRefused, SettingsError
from kafka_coord.model import TopicPartition
from kafka_coord.spark.ranges import OffsetRanges
from kafka_coord.spark.sinks import DatabaseTable, ParquetTable, TableWriter, exactly_once, files, read_table
from kafka_coord.spark.sinks.parquet import (
    STATE_EVERY,
    CommitConflict,
    Piece,
    TableCommit,
    TableLog,
    TableState,
    commit_name,
)
from tests.spark.postgres import connecting, postgres

SCHEMA = "topic string, partition int, offset bigint, value string"


@pytest.fixture
def batch(spark: Any):
    """Makes rows of a topic: ``batch({0: (10, 20)})``."""

    def make(cut: dict[int, tuple[int, int]], topic: str = "flights") -> Any:
        rows = [(topic, p, offset, f"{p}/{offset}") for p, (start, end) in cut.items() for offset in range(start, end)]
        return spark.createDataFrame(rows, SCHEMA)

    return make


def held(rows: Any) -> Counter[tuple[int, int]]:
    return Counter((row["partition"], row["offset"]) for row in rows.collect())


def once(*cuts: tuple[int, int, int]) -> Counter[tuple[int, int]]:
    return Counter((p, offset) for p, start, end in cuts for offset in range(start, end))


# --- parquet ---------------------------------------------------------------------------------------------------------


def test_a_batch_that_is_repeated_or_has_other_borders_adds_only_new_records(spark, batch, tmp_path):
    table = ParquetTable(spark, tmp_path / "table", group="delays")
    assert table.append(batch({0: (0, 10), 1: (5, 8)})).rows == 13
    again = table.append(batch({0: (0, 10), 1: (5, 8)}))
    assert (again.rows, again.repeated.size) == (0, 13)
    other = table.append(batch({0: (7, 12), 1: (0, 6)}))
    assert other.rows == 7
    assert str(other.ranges) == "flights-0[10,12) flights-1[0,5)"
    assert held(table.read()) == once((0, 0, 12), (1, 0, 8))
    assert table.state().rows == 20


def test_readers_see_only_committed_rows_and_files_of_a_crashed_writer_are_removed(spark, batch, tmp_path):
    table = ParquetTable(spark, tmp_path / "table", group="delays")
    table.append(batch({0: (0, 4)}))
    left = tmp_path / "table" / "data" / "0123456789abcdef"  # the files of a writer that crashed before it committed
    batch({0: (4, 9)}).write.parquet(left.as_uri())
    assert held(read_table(spark, tmp_path / "table")) == once((0, 0, 4))
    assert table.sweep() == 0, "the writer may still be running"
    assert table.sweep(older_than_s=0.0) == 1
    assert not left.exists()
    assert held(read_table(spark, (tmp_path / "table").as_uri())) == once((0, 0, 4))


Append = Callable[[dict[int, tuple[int, int]]], object]


def by_two_writers(writer: Callable[[], Append]) -> None:
    """Lets two threads, each with a writer, append the offsets 0 to 30 of partition 0 in overlapping batches."""
    failures: list[BaseException] = []

    def write(first: int) -> None:
        try:
            append = writer()
            for at in range(first, 24, 4):
                append({0: (at, at + 8)})
        except BaseException as failure:  # noqa: BLE001  told below
            failures.append(failure)

    threads = [threading.Thread(target=write, args=[first]) for first in (0, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures


def test_two_concurrent_writers_add_every_record_once(spark, batch, tmp_path):
    def writer() -> Append:
        table = ParquetTable(spark, tmp_path / "table", group="delays")
        return lambda cuts: table.append(batch(cuts))

    by_two_writers(writer)
    assert held(read_table(spark, tmp_path / "table")) == once((0, 0, 30))


def test_a_plain_program_and_spark_write_one_table(spark, batch, tmp_path):
    def arrow(start: int, end: int) -> pa.Table:
        offsets = range(start, end)
        return pa.table(
            {
                "topic": pa.array(["flights"] * len(offsets), pa.string()),
                "partition": pa.array([0] * len(offsets), pa.int32()),
                "offset": pa.array(offsets, pa.int64()),
                "value": pa.array([f"0/{offset}" for offset in offsets], pa.string()),
            }
        )

    plain = TableWriter(tmp_path / "table", group="delays")
    table = ParquetTable(spark, tmp_path / "table", group="delays")
    assert plain.append_arrow(arrow(0, 0)).rows == 0
    assert plain.read_arrow().schema == arrow(0, 0).schema, "the table must exist without rows"
    assert plain.append_arrow(arrow(0, 10)).rows == 10
    assert table.append(batch({0: (5, 15)})).rows == 5
    assert plain.append_arrow(arrow(12, 20)).rows == 5
    assert plain.append_arrow(arrow(0, 20)).rows == 0
    assert plain.append_arrow(arrow(0, 0)).rows == 0
    assert held(table.read()) == once((0, 0, 20))
    assert sorted(plain.read_arrow()["offset"].to_pylist()) == list(range(20))
    with pytest.raises(SettingsError, match="has the columns"):
        plain.append_arrow(arrow(20, 22).drop_columns(["value"]))


def test_a_transform_may_omit_rows_and_duplicate_rows(spark, batch, tmp_path):
    table = ParquetTable(spark, tmp_path / "table", group="delays")
    each = table.foreach_batch(lambda rows: rows.where("offset % 2 = 1").unionAll(rows.where("offset % 2 = 1")))
    each(batch({0: (0, 10)}), 0)
    each(batch({0: (0, 10)}), 0)
    each(batch({0: (0, 0)}), 1)
    assert held(table.read()) == Counter(dict.fromkeys([(0, 1), (0, 3), (0, 5), (0, 7), (0, 9)], 2))


def test_a_batch_that_fails_does_not_change_the_table(spark, batch, tmp_path):
    from pyspark.sql import functions as f

    table = ParquetTable(spark, tmp_path / "table", group="delays")
    table.append(batch({0: (0, 5)}))
    broken = batch({0: (5, 9)}).withColumn("value", f.expr("if(offset = 7, raise_error('broken record'), value)"))
    with pytest.raises(Exception, match="broken record"):
        table.append(broken)
    assert held(table.read()) == once((0, 0, 5))
    assert len(list((tmp_path / "table" / "data").iterdir())) == 1
    table.append(batch({0: (5, 9)}))
    assert held(table.read()) == once((0, 0, 9))


def test_a_table_refuses_other_groups_and_other_schemas(spark, batch, tmp_path):
    table = ParquetTable(spark, tmp_path / "table", group="delays")
    table.append(batch({0: (0, 2)}))
    with pytest.raises(RequestRefused, match="belongs to the group 'delays'"):
        ParquetTable(spark, tmp_path / "table", group="others").append(batch({0: (0, 2)}))
    with pytest.raises(SettingsError, match=r"value string, but the batch has .*value binary"):
        table.append(batch({0: (2, 4)}).selectExpr("topic", "partition", "offset", "cast(value as binary) value"))
    with pytest.raises(SettingsError, match="without offset bigint"):
        table.append(batch({0: (2, 4)}).drop("offset"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "somebody's").touch()
    with pytest.raises(RequestRefused, match="neither a table nor empty"):
        ParquetTable(spark, tmp_path / "full", group="delays").append(batch({0: (0, 2)}))
    with pytest.raises(SettingsError, match="all machines have mounted"):
        ParquetTable(spark, "s3a://bucket/table", group="delays")
    with pytest.raises(NotFound):
        read_table(spark, tmp_path / "nowhere")


def test_a_recreated_topic_is_written_once_its_old_offsets_are_forgotten(spark, batch, tmp_path):
    table = ParquetTable(spark, tmp_path / "table", group="delays")
    table.append(batch({0: (0, 5)}))
    table.append(batch({0: (0, 5)}, topic="other"))
    table.forget("flights")
    assert table.append(batch({0: (0, 3)})).rows == 3
    assert table.append(batch({0: (0, 5)}, topic="other")).rows == 0
    with pytest.raises(NotFound, match="never-there"):
        table.forget("never-there")


# --- the table's log, without Spark ----------------------------------------------------------------------------------


def covering(start: int, end: int) -> OffsetRanges:
    return OffsetRanges({TopicPartition("flights", 0): [(start, end)]})


def test_a_commit_without_knowledge_of_the_previous_one_is_refused(tmp_path):
    first, second = TableLog(tmp_path), TableLog(tmp_path)
    begun = first.commit(first.load(), TableCommit(0, group="g", schema="{}"))
    late = second.load()
    first.commit(begun, TableCommit(1, covering(0, 10), Piece("a", ("x.parquet",), 10)))
    with pytest.raises(CommitConflict) as overtaken:
        second.commit(late, TableCommit(1, covering(5, 15), Piece("b", ("x.parquet",), 10)))
    assert overtaken.value.state.covered == covering(0, 10)
    assert [piece.name for piece in second.load().pieces] == ["a"]


def test_the_log_is_read_from_a_stored_state_or_else_from_the_first_commit(tmp_path):
    log = TableLog(tmp_path)
    state = log.commit(log.load(), TableCommit(0, group="g", schema="{}"))
    for at in range(STATE_EVERY + 3):
        state = log.commit(state, TableCommit(at, covering(at, at + 1), Piece(str(at), ("x.parquet",), 1)))
    assert TableLog(tmp_path).load() == state
    for number in range(10):
        (tmp_path / commit_name(number)).rename(tmp_path / f"{number}.away")
    assert TableLog(tmp_path).load() == state, "only the commits after the stored state may be read"
    for number in range(10):
        (tmp_path / f"{number}.away").rename(tmp_path / commit_name(number))
    (tmp_path / "state.json").write_text('{"version": 1')
    assert TableLog(tmp_path).load() == state


@pytest.mark.parametrize("gone", [0, 2])
def test_a_missing_commit_is_reported_and_its_number_is_not_used_again(tmp_path, gone):
    log = TableLog(tmp_path)
    state = log.commit(log.load(), TableCommit(0, group="g", schema="{}"))
    for at in range(3):
        state = log.commit(state, TableCommit(at, covering(at, at + 1), Piece(str(at), ("x.parquet",), 1)))
    (tmp_path / commit_name(gone)).unlink()
    with pytest.raises(MalformedValue, match="missing"):
        TableLog(tmp_path).load()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"version": 9}',
        b'{"version": 1}',
        b'{"version": 1, "at_ms": 1, "piece": {"name": 3}}',
        b"\xff",
    ],
)
def test_the_error_for_an_unreadable_commit_names_it(tmp_path, content):
    (tmp_path / commit_name(0)).write_bytes(content)
    with pytest.raises(MalformedValue, match=commit_name(0)):
        TableLog(tmp_path).load()


def test_commits_and_states_survive_a_round_trip():
    commit = TableCommit(7, covering(0, 3), Piece("a", ("x", "y"), 3), covering(9, 10), "g", "{}")
    assert TableCommit.decode(commit.encode(), "it") == commit
    state = TableState().after(TableCommit(0, group="g", schema="{}")).after(commit)
    assert TableState.decode(state.encode(), "it") == state
    assert state.rows == 3


def test_a_full_disk_leaves_no_partial_commit(tmp_path):
    program = (
        "import sys, pathlib; from kafka_coord.spark.sinks import files;"
        "files.create(pathlib.Path(sys.argv[1]), b'x' * 100_000)"
    )

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    target = tmp_path / "commits" / commit_name(3)
    command = [sys.executable, "-c", program, target]
    done = subprocess.run(command, check=False, preexec_fn=small_files, capture_output=True)
    assert done.returncode != 0
    assert b"File too large" in done.stderr
    assert list(target.parent.iterdir()) == []
    assert files.create(target, b"now")
    assert not files.create(target, b"too late")
    assert target.read_bytes() == b"now"


# --- databases, and users' own functions -----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Path | None]:
    """The folder with a PostgreSQL server's socket, or ``None`` if ``pgserver`` is not installed."""
    if importlib.util.find_spec("pgserver") is None:
        yield None
        return
    with postgres() as folder:
        yield folder


@pytest.fixture(params=["sqlite3", "psycopg", "pg8000"])
def database(request: pytest.FixtureRequest, postgresql: Path | None, tmp_path: Path) -> Callable[[], Any]:
    """Connects to a database with an empty table ``delays``."""
    if request.param == "sqlite3":
        connect = partial(sqlite3.connect, tmp_path / "delays.db", timeout=60)
    elif postgresql is None:
        pytest.skip("the package pgserver is not installed")
    else:
        connect = connecting(request.param, postgresql)
    with contextlib.closing(connect()) as connection:
        cursor = connection.cursor()
        cursor.execute("DROP TABLE IF EXISTS delays")
        cursor.execute("DROP TABLE IF EXISTS kafka_coord_offsets")
        cursor.execute('CREATE TABLE delays (topic TEXT, "partition" INT, "offset" BIGINT, value TEXT)')
        connection.commit()
    return connect


def stored(connect: Any) -> Counter[tuple[int, int]]:
    return Counter(map(tuple, asked(connect, 'SELECT "partition", "offset" FROM delays')))


def asked(connect: Any, question: str) -> Any:
    with contextlib.closing(connect()) as connection:
        cursor = connection.cursor()
        cursor.execute(question)
        return cursor.fetchall()


def test_a_database_table_holds_every_record_once(batch, database):
    each = DatabaseTable(database, "delays", group="delays").foreach_batch()
    each(batch({0: (0, 10), 1: (5, 8)}), 0)
    each(batch({0: (0, 10), 1: (5, 8)}), 0)
    each(batch({0: (7, 12), 1: (0, 6)}), 1)
    assert stored(database) == once((0, 0, 12), (1, 0, 8))
    assert str(DatabaseTable(database, "delays", group="delays").covered()) == "flights-0[0,12) flights-1[0,8)"
    assert asked(database, "SELECT count(*) FROM kafka_coord_offsets")[0][0] == 3


def test_records_that_another_application_wrote_in_the_meantime_are_not_written_to_a_database(batch, database):
    table = DatabaseTable(database, "delays", group="delays")
    other = DatabaseTable(database, "delays", group="delays").foreach_batch()

    late = exactly_once("delays", lambda one: (other(batch({0: (3, 6)}), 7), table._write(one))[0], table.covered)
    late(batch({0: (0, 10)}), 0)
    assert stored(database) == once((0, 0, 10))


def test_two_concurrent_writers_add_every_record_to_a_database_once(batch, database):
    def writer() -> Append:
        each = DatabaseTable(database, "delays", group="delays").foreach_batch()
        return lambda cuts: each(batch(cuts), 0)

    by_two_writers(writer)
    assert stored(database) == once((0, 0, 30))


REFUSALS = {"sqlite3": "OperationalError", "psycopg": "ProgrammingError", "pg8000": "ProgrammingError"}
"""The error of each driver for a missing column."""


def test_a_failed_transaction_records_no_ranges(request, batch, database):
    each = DatabaseTable(database, "delays", group="delays").foreach_batch(
        lambda rows: rows.withColumnRenamed("value", "no")
    )
    driver = request.node.callspec.params["database"]
    refusal = getattr(importlib.import_module(driver), REFUSALS[driver])
    with pytest.raises(refusal, match=r'no column named no|column "no" of relation'):
        each(batch({0: (0, 10)}), 0)
    assert not DatabaseTable(database, "delays", group="delays").covered()
    with pytest.raises(SettingsError, match="not a legal table name"):
        DatabaseTable(database, 'delays"; DROP TABLE delays; --', group="delays")


def test_a_users_own_function_gets_only_records_that_are_not_done_yet(batch):
    done: list[OffsetRanges] = []
    given: list[Any] = []

    def write(one: Any) -> None:
        given.append((held(one.rows), str(one.ranges), one.key))
        done.append(one.ranges)

    def noted() -> OffsetRanges:
        found = OffsetRanges()
        for one in done:
            found |= one
        return found

    each = exactly_once("delays", write, noted)
    each(batch({0: (0, 4)}), 0)
    each(batch({0: (0, 4)}), 0)
    each(batch({0: (2, 6)}), 1)
    assert [(rows, ranges) for rows, ranges, _ in given] == [
        (once((0, 0, 4)), "flights-0[0,4)"),
        (once((0, 4, 6)), "flights-0[4,6)"),
    ]
    assert given[0][2] == OffsetRanges.of([("flights", 0, 0, 4)]).key("delays")
