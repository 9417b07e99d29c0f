"""Reads CSV and JSONL files as records with keys and JSON values."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Any

from kafka_coord.errors import MalformedValue, SettingsError

KeyValue = tuple[bytes | None, bytes | None]

# A cell such as 007 or +1 is probably not a number, so it stays text.
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_DECIMAL = re.compile(r"-?(?:0|[1-9]\d{0,14})\.\d{1,15}")


def read_records(file: str, file_format: str | None, key_column: str | None) -> Generator[KeyValue, None, None]:
    """Yields the records in a file or on standard input (``-``). The file is opened when the first record is requested.
    Raises :class:`SettingsError` if the file or the column is unusable, and :class:`MalformedValue`, with the line
    number, if a line is malformed.
    """
    endings = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
    chosen = file_format or endings.get(Path(file).suffix.lower())
    if chosen is None:
        raise SettingsError(f"cannot tell the format of {file!r} from its name; pass --format")
    if file != "-" and not Path(file).is_file():
        raise SettingsError(f"{file!r} is not a file")
    return _read_csv(file, key_column) if chosen == "csv" else _read_jsonl(file, key_column)


@contextlib.contextmanager
def _opened(file: str) -> Iterator[IO[str]]:
    try:
        if file == "-":  # it has the same encoding as a file, whatever the locale
            text: IO[str] = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig", newline="")
            try:
                yield text
            finally:
                text.detach()  # type: ignore[attr-defined]
            return
        with Path(file).open(encoding="utf-8-sig", newline="") as text:
            yield text
    except OSError as error:
        raise SettingsError(f"{file!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise MalformedValue(file, f"not UTF-8 text ({error.reason} at byte {error.start})") from None


def _read_csv(file: str, key_column: str | None) -> Generator[KeyValue, None, None]:
    with _opened(file) as text:
        rows = csv.reader(text)
        try:
            header = next(rows, None)
        except csv.Error as error:
            raise MalformedValue(f"{file}:{rows.line_num}", str(error)) from None
        if not header:
            raise MalformedValue(file, "the header line is missing")
        twice = [name for name, many in Counter(header).items() if many > 1]
        if twice:
            raise MalformedValue(file, f"the header names the column {twice[0][:60]!r} more than once")
        if key_column is not None and key_column not in header:
            named = ", ".join(name[:60] for name in header[:20])
            raise SettingsError(f"--key {key_column!r} is not a column of {file}; its columns are {named}")
        key_at = header.index(key_column) if key_column is not None else None
        try:
            for row in rows:
                if not row:
                    continue
                if len(row) != len(header):
                    reason = f"expected {len(header)} columns, as in the header, but the row has {len(row)}"
                    raise MalformedValue(f"{file}:{rows.line_num}", reason)
                value = {name: cell_value(cell) for name, cell in zip(header, row, strict=True)}
                key = row[key_at].encode() if key_at is not None and row[key_at] else None
                yield key, json.dumps(value, ensure_ascii=False).encode()
        except csv.Error as error:
            raise MalformedValue(f"{file}:{rows.line_num}", str(error)) from None


def _read_jsonl(file: str, key_field: str | None) -> Generator[KeyValue, None, None]:
    with _opened(file) as text:
        for at, line in enumerate(text, 1):
            stripped = line.strip()
            if not stripped:
                continue
            try:
                value = json.loads(stripped)
            except (ValueError, RecursionError) as error:
                raise MalformedValue(f"{file}:{at}", f"not JSON ({error})") from None
            key = None
            if key_field is not None:
                if not isinstance(value, dict) or key_field not in value:
                    raise MalformedValue(f"{file}:{at}", f"the record lacks the field {key_field!r}")
                try:
                    key = _key(value[key_field])
                except UnicodeEncodeError:
                    raise MalformedValue(f"{file}:{at}", f"the field {key_field!r} is not text") from None
            yield key, stripped.encode()


def _key(found: Any) -> bytes | None:
    if found is None:
        return None
    return (found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)).encode()


def cell_value(cell: str) -> str | int | float | None:
    """Converts a CSV cell to a JSON value."""
    if not cell:
        return None
    if _INTEGER.fullmatch(cell):
        return int(cell)
    return float(cell) if _DECIMAL.fullmatch(cell) else cell
