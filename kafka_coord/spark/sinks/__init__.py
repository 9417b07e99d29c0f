"""Sinks that store each record of a query exactly once, even across crashes and rebalances.

A sink stores rows together with their offsets in one atomic step. If Spark repeats a batch after a crash, the sink
recognises the rows that it already contains and skips them.

:class:`DatabaseTable` takes a function that opens a DB-API 2 connection to SQLite or PostgreSQL. It keeps the offsets
in the table ``kafka_coord_offsets``, which contains one row for each contiguous range of a partition.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka_coord.errors import SettingsError
from kafka_coord.model.names import legal
from kafka_coord.spark.ranges import OffsetRanges
from kafka_coord.spark.sinks.batches import BetweenBatches, ForeachBatch, MicroBatch, exactly_once, offsets_of
from kafka_coord.spark.sinks.parquet import Appended, ParquetTable, TableWriter, read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


__all__ = [
    "Appended",
    "BetweenBatches",
    "DatabaseTable",
    "MicroBatch",
    "ParquetTable",
    "TableWriter",
    "exactly_once",
    "offsets_of",
    "read_table",
]


OFFSETS_TABLE = "kafka_coord_offsets"
_INSERT_ROWS = 1_000
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")

_CREATE = f"""CREATE TABLE IF NOT EXISTS {OFFSETS_TABLE} (
    table_name TEXT NOT NULL, group_name TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL,
    first_offset BIGINT NOT NULL, end_offset BIGINT NOT NULL,
    PRIMARY KEY (table_name, group_name, topic, partition, first_offset))"""
_SELECT = f"""SELECT topic, partition, first_offset, end_offset FROM {OFFSETS_TABLE}
    WHERE table_name = ? AND group_name = ?"""  # noqa: S608  contains no values
_GROW = f"""UPDATE {OFFSETS_TABLE} SET end_offset = ?
    WHERE table_name = ? AND group_name = ? AND topic = ? AND partition = ? AND end_offset = ?"""  # noqa: S608
_ADD = f"INSERT INTO {OFFSETS_TABLE} VALUES (?, ?, ?, ?, ?, ?)"  # noqa: S608

Connect = Callable[[], Any]
"""Opens a DB-API connection, such as ``lambda: sqlite3.connect("delays.db", timeout=60)``."""


class DatabaseTable:
    """Appends batches to an existing ``table`` (or ``schema.table``) that has the batch's column names.

    Rows pass through Spark's driver, one partition of the batch at a time. Several applications may write concurrently,
    even an application that was declared dead too early. A lock on the offsets serialises their transactions, and each
    application skips rows that the table already contains. Raises :class:`SettingsError` for an illegal table name.
    """

    def __init__(self, connect: Connect, table: str, *, group: str) -> None:
        parts = table.split(".")
        if len(parts) > 2 or not all(map(_IDENTIFIER.fullmatch, parts)):
            raise SettingsError(f"{table!r} is not a legal table name; use letters, digits and _, or schema.table")
        self._connect = connect
        self._table = table
        self._quoted = ".".join(f'"{part}"' for part in parts)
        self._group = legal("group", group)

    def foreach_batch(self, transform: Callable[[DataFrame], DataFrame] | None = None) -> ForeachBatch:
        """Returns a function for ``writeStream.foreachBatch`` that first applies ``transform`` to each batch.
        ``transform`` must preserve the columns topic, partition and offset."""
        each = exactly_once(self._group, self._write, self.covered)

        def append(rows: DataFrame, batch_id: int) -> None:
            each(transform(rows) if transform is not None else rows, batch_id)

        return append

    def covered(self) -> OffsetRanges:
        """Returns the offsets that the table covers. For each of them, the record is stored, or there is no record."""
        with self._transaction() as statements:
            return self._covered(statements)

    def _write(self, batch: MicroBatch) -> None:
        names = batch.rows.columns
        if wrong := [name for name in names if not _IDENTIFIER.fullmatch(name)]:
            raise SettingsError(f"column {wrong[0]!r} of the batch is not a legal column name; give it an alias")
        columns = ", ".join(f'"{name}"' for name in names)
        marks = ", ".join("?" * len(names))
        at = [names.index(name) for name in ("topic", "partition", "offset")]
        with self._transaction() as statements:
            meanwhile = self._covered(statements) & batch.ranges
            rows = batch.rows.toLocalIterator(prefetchPartitions=True)
            fresh = (row for row in rows if tuple(row[one] for one in at) not in meanwhile)
            while some := [tuple(map(_plain, row)) for row in itertools.islice(fresh, _INSERT_ROWS)]:
                statements.many(f"INSERT INTO {self._quoted} ({columns}) VALUES ({marks})", some)  # noqa: S608  checked
            self._note(statements, batch.ranges - meanwhile)

    def _covered(self, statements: _Statements) -> OffsetRanges:
        rows = statements.one(_SELECT, (self._table, self._group)).fetchall()
        return OffsetRanges.of((str(t), int(p), int(first), int(end)) for t, p, first, end in rows)

    def _note(self, statements: _Statements, ranges: OffsetRanges) -> None:
        """Extends a stored range if a new one begins where it ends. Otherwise, inserts the new range."""
        for topic, partition, start, end in ranges.rows():
            key = (self._table, self._group, topic, partition)
            if statements.one(_GROW, (end, *key, start)).rowcount == 0:
                statements.one(_ADD, (*key, start, end))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[_Statements]:
        """Opens a transaction that excludes all other writers."""
        connection = self._connect()
        try:
            dialect = _dialect(connection)
            statements = _Statements(connection.cursor(), dialect.mark)
            try:
                for statement in dialect.begin:
                    statements.one(statement)
                yield statements
            except BaseException:
                connection.rollback()
                raise
            connection.commit()
        finally:
            connection.close()


class _Statements:
    """A cursor that also works with drivers whose placeholder is not ``?``."""

    def __init__(self, cursor: Any, mark: str) -> None:
        self._cursor = cursor
        self._mark = mark

    def one(self, statement: str, values: Sequence[Any] = ()) -> Any:
        self._cursor.execute(statement.replace("?", self._mark), values)
        return self._cursor

    def many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        self._cursor.executemany(statement.replace("?", self._mark), rows)


class _Dialect(NamedTuple):
    """A driver's placeholder, and the statements that begin an exclusive transaction."""

    mark: str
    begin: tuple[str, ...]


_SQLITE = _Dialect("?", ("BEGIN IMMEDIATE", _CREATE))
_POSTGRESQL = _Dialect(
    "%s",
    (
        "SELECT pg_advisory_xact_lock(7078654521)",  # two concurrent CREATE … IF NOT EXISTS may fail
        _CREATE,
        f"LOCK TABLE {OFFSETS_TABLE} IN EXCLUSIVE MODE",
    ),
)


def _dialect(connection: Any) -> _Dialect:
    module = type(connection).__module__.partition(".")[0]
    if module == "sqlite3":
        connection.isolation_level = None  # sqlite3's implicit transactions begin too late to lock anything
        return _SQLITE
    if module in {"psycopg", "psycopg2", "pg8000"}:
        return _POSTGRESQL
    raise SettingsError(f"{module} connections are not supported; use sqlite3, psycopg, psycopg2 or pg8000")


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value
