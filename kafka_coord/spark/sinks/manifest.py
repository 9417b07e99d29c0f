"""The metadata of a parquet table: its commits, and the state that results from them. All functions are pure.

::

    TABLE/_commits/00000000000000000007.json   Commit number 7, created by the first writer to get there
    TABLE/_commits/state.json                  a TableState, so that readers need not read all commits
    TABLE/data/<piece>/part-….parquet          the rows of one append; valid only once a commit lists them

A writer creates a commit as the successor of the last commit that it read. If its number is taken, the writer reads the
existing commit with that number and decides again, so that every commit takes all earlier commits into account.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kafka_coord.errors import MalformedValue, UnknownVersion
from kafka_coord.spark.ranges import NO_RANGES, OffsetRanges

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
