"""Reads files with one JSON object per line, and appends to them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from kafka_coord.errors import MalformedValue

T = TypeVar("T")


class Appending:
    """Appends lines to a file, unbuffered, so that they survive a ``kill -9`` of the writer. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def append(self, value: Mapping[str, Any]) -> None:
        line = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            while line:  # one write to a raw file may be partial
                line = line[self._file.write(line) or 0 :]


def read_lines(path: Path, decode: Callable[[Mapping[str, Any]], T]) -> list[T]:
    """Decodes the complete lines of a file, which need not exist. Raises :class:`MalformedValue` with the faulty
    line."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    found: list[T] = []
    for line in content.split(b"\n")[:-1]:
        try:
            found.append(decode(json.loads(line)))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise MalformedValue(f"{path}:{len(found) + 1}", f"not a journal line ({error!r})") from error
    return found
