"""A parquet table that holds every record once, and the log of its commits. Any number of Spark applications may write
to it concurrently.

An append first writes its rows to new files. It then commits these files and their offsets in one file of the table's
log. After a crash, Spark may repeat a batch, perhaps with other boundaries, and another member of the group may have
written the same records. So before an append commits, it drops the rows whose offsets the table already covers. Readers
see only committed rows.

::

    TABLE/_commits/00000000000000000007.json   Commit number 7, created by the first writer to get there
    TABLE/_commits/state.json                  a TableState, so that readers need not read all commits
    TABLE/data/<piece>/part-….parquet          the rows of one append; valid only once a commit lists them

A writer creates a commit as the successor of the last commit that it read. If its number is taken, the writer reads the
existing commit with that number and decides again, so that every commit takes all earlier commits into account.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka_coord.errors import MalformedValue, NotFound, RequestRefused, SettingsError, UnknownVersion
from kafka_coord.model.names import legal
from kafka_coord.spark.ranges import NO_RANGES, OffsetRanges
from kafka_coord.spark.sinks import files
from kafka_coord.spark.sinks.batches import ForeachBatch, require_key_columns

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

VERSION = 1
_DIGITS = 20


@dataclass(frozen=True, slots=True)
class Piece:
    """The parquet ``files`` that one append wrote into ``data/<name>``."""

    name: str
    files: tuple[str, ...]
    rows: int

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "files": list(self.files), "rows": self.rows}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Piece:
        return cls(str(value["name"]), tuple(map(str, value["files"])), int(value["rows"]))


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One commit to a table, at ``at_ms`` (ms since 1970). It adds ``ranges``, whose rows are in ``piece``, to the
    covered offsets, and removes ``forget`` from them. The table's first commit sets its ``group`` and ``schema``
    (Spark's JSON)."""

    at_ms: int
    ranges: OffsetRanges = NO_RANGES
    piece: Piece | None = None
    forget: OffsetRanges = NO_RANGES
    group: str = ""
    schema: str = ""

    def encode(self) -> bytes:
        value: dict[str, Any] = {"version": VERSION, "at_ms": self.at_ms}
        if self.ranges:
            value["ranges"] = self.ranges.to_json()
        if self.piece is not None:
            value["piece"] = self.piece.to_json()
        if self.forget:
            value["forget"] = self.forget.to_json()
        if self.group:
            value |= {"group": self.group, "schema": self.schema}
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, content: bytes, where: str) -> TableCommit:
        """Reads the value. Raises :class:`MalformedValue` and :class:`UnknownVersion`."""
        value = _load(content, where)
        try:
            return cls(
                at_ms=int(value["at_ms"]),
                ranges=OffsetRanges.from_json(value.get("ranges", {}), where),
                piece=Piece.from_json(value["piece"]) if "piece" in value else None,
                forget=OffsetRanges.from_json(value.get("forget", {}), where),
                group=str(value.get("group", "")),
                schema=str(value.get("schema", "")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedValue(where, f"not a table commit ({error!r})") from None


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of a table after commit ``number``, or before the first commit if ``number`` is -1."""

    number: int = -1
    group: str = ""
    schema: str = ""
    covered: OffsetRanges = NO_RANGES
    pieces: tuple[Piece, ...] = ()

    def after(self, commit: TableCommit) -> TableState:
        return replace(
            self,
            number=self.number + 1,
            group=commit.group or self.group,
            schema=commit.schema or self.schema,
            covered=(self.covered | commit.ranges) - commit.forget,
            pieces=self.pieces if commit.piece is None else (*self.pieces, commit.piece),
        )

    @property
    def rows(self) -> int:
        """The number of rows in the table."""
        return sum(piece.rows for piece in self.pieces)

    def encode(self) -> bytes:
        value = {
            "version": VERSION,
            "number": self.number,
            "group": self.group,
            "schema": self.schema,
            "covered": self.covered.to_json(),
            "pieces": [piece.to_json() for piece in self.pieces],
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, content: bytes, where: str) -> TableState:
        """Reads the value. Raises :class:`MalformedValue` and :class:`UnknownVersion`."""
        value = _load(content, where)
        try:
            return cls(
                number=int(value["number"]),
                group=str(value["group"]),
                schema=str(value["schema"]),
                covered=OffsetRanges.from_json(value["covered"], where),
                pieces=tuple(Piece.from_json(piece) for piece in value["pieces"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise MalformedValue(where, f"not the state of a table ({error!r})") from None


def commit_name(number: int) -> str:
    return f"{number:0{_DIGITS}d}.json"


def _load(content: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise MalformedValue(where, f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise MalformedValue(where, "not a JSON object")
    if value.get("version") != VERSION:
        raise UnknownVersion(where, f"version {value.get('version')!r}; this release supports {VERSION}")
    return value


STATE_EVERY = 50
_STATE = "state.json"


class CommitConflict(Exception):
    """Another writer committed first. ``state`` is the table's current state."""

    def __init__(self, state: TableState) -> None:
        super().__init__(f"the table is already at commit {state.number}")
        self.state = state


class TableLog:
    """Reads and writes a table's ``_commits``. Caches the state, because commits never change. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known = TableState()

    def load(self) -> TableState:
        """Returns the table's current state. Raises :class:`MalformedValue` for a log that cannot be read."""
        first = self._known.number < 0
        state = self._refreshed(self._kept() if first else self._known)
        if first and (newest := self._newest()) > state.number:
            state = self._refreshed(state)  # another writer may have just committed it
            if newest > state.number:
                raise MalformedValue(
                    str(self._folder / commit_name(state.number + 1)),
                    f"the commit is missing although commit {newest} exists: restore the file",
                )
        self._known = state
        return state

    def _refreshed(self, state: TableState) -> TableState:
        while (content := _read(self._folder / commit_name(state.number + 1))) is not None:
            state = state.after(TableCommit.decode(content, str(self._folder / commit_name(state.number + 1))))
        return state

    def _newest(self) -> int:
        return max((int(path.stem) for path in self._folder.glob("*.json") if path.stem.isdigit()), default=-1)

    def commit(self, state: TableState, commit: TableCommit) -> TableState:
        """Appends ``commit`` as the successor of ``state``. Returns the new state. If ``state`` is no longer the
        newest, commits nothing and raises :class:`CommitConflict`.
        """
        number = state.number + 1
        if not files.create(self._folder / commit_name(number), commit.encode()):
            raise CommitConflict(self.load())
        self._known = state.after(commit)
        if number and number % STATE_EVERY == 0:
            self._keep(self._known)
        return self._known

    def _kept(self) -> TableState:
        content = _read(self._folder / _STATE)
        if content is None:
            return TableState()
        try:
            return TableState.decode(content, str(self._folder / _STATE))
        except MalformedValue as error:
            log.warning("reading all commits of the table, because its state file is unreadable: %s", error)
            return TableState()

    def _keep(self, state: TableState) -> None:
        try:
            files.replace(self._folder / _STATE, state.encode())
        except OSError as error:  # the commit exists, and the state file only saves time for readers
            log.warning("cannot write the table's state file, so readers will be slower: %s", error)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


DAY_S = 24 * 3600.0
_COMMITS = "_commits"
_DATA = "data"


@dataclass(frozen=True, slots=True)
class Appended:
    """The outcome of a batch: the added offsets, the number of their ``rows``, and the ``repeated`` offsets that the
    table already covered."""

    ranges: OffsetRanges
    repeated: OffsetRanges
    rows: int


class TableWriter:
    """Appends Arrow tables to a parquet table in a directory. Needs the package pyspark, but does not start Spark.
    Other members of the ``group``, including Spark queries, may write concurrently. A writer is not thread-safe.

    ``path`` must be mounted on all machines of a cluster. Raises :class:`SettingsError` for an object
    store or any other URI scheme. If the table belongs to another group, the first append raises
    :class:`RequestRefused`.
    """

    def __init__(self, path: str | os.PathLike[str], *, group: str) -> None:
        self._group = legal("group", group)
        self.path = files.local_directory(path)
        self._log = TableLog(self.path / _COMMITS)

    def append_arrow(self, rows: pyarrow.Table) -> Appended:
        """Like :meth:`ParquetTable.append`, but for an Arrow table. Afterwards, the consumer should commit its offsets
        to the group."""
        import pyarrow.parquet as pq
        from pyspark.sql.pandas.types import from_arrow_schema

        def write(folder: Path) -> None:
            folder.mkdir(parents=True)
            pq.write_table(rows, folder / "part-0.parquet")

        return self._append(from_arrow_schema(rows.schema), write)

    def state(self) -> TableState:
        """Returns the table's current state: its pieces, rows and covered offsets."""
        return self._log.load()

    def covered(self) -> OffsetRanges:
        """Returns the offsets that the table covers. For each of them, the record is stored, or there is no record."""
        return self.state().covered

    def read_arrow(self) -> pyarrow.Table:
        """Returns the committed rows. Raises :class:`NotFound` if there is no table."""
        import pyarrow.parquet as pq
        from pyspark.sql.pandas.types import to_arrow_schema

        state = _there(self._log, self.path)
        schema = to_arrow_schema(_struct(state.schema), timezone="UTC")
        if not state.pieces:
            return schema.empty_table()
        # Pass the schema. By default, Spark writes timestamps as INT96, and a schema inferred from the files would lose
        # their time zone.
        return pq.read_table([str(file) for piece in state.pieces for file in self._files(piece)], schema=schema)

    def forget(self, topic: str) -> None:
        """Treats a topic's offsets as never written. Call this after the topic has been recreated, since its
        records are then new. Keeps the rows. Raises :class:`NotFound`."""
        state = self._log.load()
        while True:
            mine = OffsetRanges(
                {tp: state.covered.of_partition(tp) for tp in state.covered.partitions if tp.topic == topic}
            )
            if not mine:
                raise NotFound(f"{self.path} does not cover any offsets of the topic {topic!r}")
            try:
                self._log.commit(state, TableCommit(_now_ms(), forget=mine))
            except CommitConflict as overtaken:
                state = overtaken.state
            else:
                return

    def sweep(self, *, older_than_s: float = DAY_S) -> int:
        """Deletes the pieces of writers that crashed before they committed, unless the pieces were written to within
        the last ``older_than_s`` seconds. Choose a time that is longer than any batch takes. Returns the number of
        deleted pieces."""
        state = self._log.load()
        named = {piece.name for piece in state.pieces}
        before = time.time() - older_than_s
        old = [
            folder
            for folder in (self.path / _DATA).glob("*")
            if folder.name not in named and files.newest_s(folder) < before
        ]
        for folder in old:
            shutil.rmtree(folder, ignore_errors=True)
        return len(old)

    def _require_mine(self, schema: StructType) -> TableState:
        required = _plain(schema)
        state = self._log.load()
        if state.number < 0:
            if foreign := sorted(path.name for path in self.path.glob("*") if path.name not in {_COMMITS, _DATA}):
                raise RequestRefused(
                    f"{self.path} is neither a table nor empty (it contains {foreign[0]!r}); choose another directory"
                )
            try:
                state = self._log.commit(state, TableCommit(_now_ms(), group=self._group, schema=required))
            except CommitConflict as overtaken:
                state = overtaken.state
        if state.group != self._group:
            raise RequestRefused(
                f"the table {self.path} belongs to the group {state.group!r}; the group {self._group!r} would write "
                "every record a second time: choose another directory"
            )
        if state.schema != required:
            raise SettingsError(
                f"the table {self.path} has the columns {_columns(state.schema)}, but the batch has"
                f" {_columns(required)}: write to another directory, or select the table's columns"
            )
        return state

    def _append(self, schema: StructType, write: Callable[[Path], None]) -> Appended:
        state = self._require_mine(schema)
        piece, there = self._stage(write)
        repeated = NO_RANGES
        while piece is not None:
            if again := there & state.covered:
                repeated, there = repeated | again, there - again
                piece = self._restage(piece, again)
                if piece is None:
                    break
            files.make_durable(self._files(piece))
            try:
                self._log.commit(state, TableCommit(_now_ms(), ranges=there, piece=piece))
            except CommitConflict as overtaken:
                state = overtaken.state
                continue
            log.debug("appended rows=%d ranges=%s", piece.rows, there)
            return Appended(there, repeated, piece.rows)
        if repeated:
            log.info("skipping rows that the table already contains ranges=%s", repeated)
        return Appended(NO_RANGES, repeated, 0)

    def _stage(self, write: Callable[[Path], None]) -> tuple[Piece | None, OffsetRanges]:
        """Writes rows as a piece that no commit lists yet. Returns the piece and the offsets that it covers."""
        name = uuid.uuid4().hex
        folder = self.path / _DATA / name
        try:
            write(folder)
            written = tuple(sorted(path.name for path in folder.glob("*.parquet")))
            count, there = _contents(folder / file for file in written)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if not count:
            shutil.rmtree(folder, ignore_errors=True)
            return None, NO_RANGES
        return Piece(name, written, count), there

    def _restage(self, piece: Piece, without: OffsetRanges) -> Piece | None:
        """Replaces the piece with a new one that omits the given offsets. Returns the new piece, or ``None`` if no row
        is left."""
        import pyarrow.parquet as pq

        def write(folder: Path) -> None:
            folder.mkdir()
            for file in self._files(piece):
                rows = pq.read_table(file)
                pq.write_table(rows.filter(~_mask(rows, without)), folder / file.name)

        anew, _ = self._stage(write)
        shutil.rmtree(self.path / _DATA / piece.name, ignore_errors=True)
        return anew

    def _files(self, piece: Piece) -> list[Path]:
        return [self.path / _DATA / piece.name / file for file in piece.files]


class ParquetTable(TableWriter):
    """A :class:`TableWriter` for the batches of a Spark query."""

    def __init__(self, spark: SparkSession, path: str | os.PathLike[str], *, group: str) -> None:
        super().__init__(path, group=group)
        self._spark = spark

    def foreach_batch(self, transform: Callable[[DataFrame], DataFrame] | None = None) -> ForeachBatch:
        """Returns a function for ``writeStream.foreachBatch`` that first applies ``transform`` to each batch.
        ``transform`` must preserve the columns topic, partition and offset, and may leave out rows or turn one row into
        several."""

        def append(rows: DataFrame, _batch_id: int) -> None:
            self.append(transform(rows) if transform is not None else rows)

        return append

    def append(self, rows: DataFrame) -> Appended:
        """Appends a batch, without the rows whose offsets the table already covers. Returns the outcome. A batch covers
        each partition from its lowest to its highest offset.

        The batch is computed once. If anything fails, such as a full disk or a lost worker, the table is unchanged.
        Raises :class:`SettingsError` if the batch's columns differ from the table's.
        """
        require_key_columns(rows)
        return self._append(rows.schema, lambda folder: rows.write.parquet(folder.as_uri()))

    def read(self) -> DataFrame:
        """Returns the current rows. Later commits do not change the contents of this DataFrame."""
        return read_table(self._spark, self.path)


def read_table(spark: SparkSession, path: str | os.PathLike[str]) -> DataFrame:
    """Returns a table's currently committed rows. Raises :class:`NotFound`."""
    folder = files.local_directory(path)
    state = _there(TableLog(folder / _COMMITS), folder)
    there = [(folder / _DATA / piece.name / file).as_uri() for piece in state.pieces for file in piece.files]
    schema = _struct(state.schema)
    return spark.read.schema(schema).parquet(*there) if there else spark.createDataFrame([], schema)


def _there(log_: TableLog, folder: Path) -> TableState:
    state = log_.load()
    if state.number < 0:
        raise NotFound(f"there is no table at {folder}")
    return state


def _mask(rows: pyarrow.Table, ranges: OffsetRanges) -> Any:
    """Returns a boolean array that is true for each row whose offset is within the ranges."""
    import numpy as np

    topics = rows["topic"].to_numpy()
    partitions, offsets = rows["partition"].to_numpy(), rows["offset"].to_numpy()
    mask = np.zeros(rows.num_rows, dtype=bool)
    for topic, partition, start, end in ranges.rows():
        mask |= (topics == topic) & (partitions == partition) & (offsets >= start) & (offsets < end)
    return mask


def _contents(paths: Iterable[Path]) -> tuple[int, OffsetRanges]:
    """Returns the number of rows in the given files, and the offsets that the files cover: in each partition, every
    offset from the lowest to the highest."""
    import pyarrow.parquet as pq

    count = 0
    bounds: dict[tuple[str, int], tuple[int, int]] = {}
    for path in paths:
        rows = pq.read_table(path, columns=["topic", "partition", "offset"])
        count += rows.num_rows
        for row in rows.group_by(["topic", "partition"]).aggregate([("offset", "min"), ("offset", "max")]).to_pylist():
            low, high = bounds.get((row["topic"], row["partition"]), (row["offset_min"], row["offset_max"]))
            bounds[row["topic"], row["partition"]] = min(low, row["offset_min"]), max(high, row["offset_max"])
    return count, OffsetRanges.of((*partition, low, high + 1) for partition, (low, high) in bounds.items())


def _struct(schema: str) -> StructType:
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(schema))


def _plain(schema: StructType) -> str:
    """Returns the schema as JSON, without nullability, which is not part of a table's schema."""
    return json.dumps(_nullable(schema.jsonValue()))


def _nullable(value: Any) -> Any:
    if isinstance(value, list):
        return [_nullable(one) for one in value]
    if isinstance(value, dict):
        return {
            name: True if name in {"nullable", "containsNull", "valueContainsNull"} else _nullable(one)
            for name, one in value.items()
            if name != "metadata"
        } | ({"metadata": {}} if "metadata" in value else {})
    return value


def _columns(schema: str) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in _struct(schema).fields)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
