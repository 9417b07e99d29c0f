"""Publishes results atomically: parquet data sets in a directory that is renamed once all of them are written."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka_coord.errors import MalformedValue, NotFound
from kafka_coord.spark.sinks.files import replace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SUMMARY = "summary.json"
_KEPT = 5
"""The number of results to retain, so that readers of an earlier result can finish."""


class Results:
    """Results that are being written. ``directory`` is a draft until the :func:`publishing` block ends, and the
    published directory afterwards."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.summary: Mapping[str, Any] = {}

    def write(self, part: str, rows: DataFrame) -> None:
        """Writes one data set that is small enough for one file."""
        rows.coalesce(1).write.parquet((self.directory / part).as_uri())


@contextmanager
def publishing(root: Path, order: str = "") -> Iterator[Results]:
    """Publishes what the block writes, below ``root``, under a name that sorts by ``order`` and then by time. If
    anything fails, publishes nothing."""
    results = Results(root / f".{uuid.uuid4().hex}")
    draft = results.directory
    try:
        draft.mkdir(parents=True)
        yield results
        replace(draft / _SUMMARY, json.dumps(results.summary, indent=1).encode())
        results.directory = root / "-".join(filter(None, (order, f"{time.time_ns() // 1_000_000:013d}")))
        draft.rename(results.directory)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    for old in _published(root)[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def last_published(root: Path, advice: str) -> tuple[Path, Mapping[str, Any]]:
    """Returns the directory and the summary of the last results. Raises :class:`NotFound` with ``advice`` if there are
    no results, and :class:`MalformedValue` for a damaged summary.
    """
    there = _published(root)
    if not there:
        raise NotFound(f"{root} does not contain results yet: {advice}")
    path = there[-1] / _SUMMARY
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise MalformedValue(str(path), f"not JSON ({error})") from None
    if not isinstance(value, Mapping):
        raise MalformedValue(str(path), "not a JSON object")
    return there[-1], value


def _published(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.glob(f"[0-9]*/{_SUMMARY}"))
