"""Reads the JSON values in ZooKeeper strictly. Every error names the znode, the field and the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from kafka_coord.errors import MalformedValue, UnknownVersion

VERSION = 1
MAX_VALUE_BYTES = 900_000
"""The size of the largest value that this project stores (``jute.maxbuffer`` is 1 MB for the whole request)."""

Json = Mapping[str, Any]
T = TypeVar("T")


def dump(value: Json) -> bytes:
    """Encodes a value as compact JSON in UTF-8. Preserves the order of fields for people who read the values with
    zkCli."""
    return msgspec.json.encode(value)


def load(raw: bytes, where: str) -> dict[str, Any]:
    """Reads a JSON object of version 1. Keeps unknown fields. Raises :class:`MalformedValue` or
    :class:`UnknownVersion`."""
    if len(raw) > MAX_VALUE_BYTES:
        raise MalformedValue(where, f"{len(raw)} bytes; the limit is {MAX_VALUE_BYTES}")
    value = load_object(raw, where)
    version = value.get("version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise MalformedValue(where, f"field 'version' is {shown(version)}, not a number")
    if version != VERSION:
        raise UnknownVersion(where, f"version {version}; this release supports version {VERSION}")
    return value


def load_object(raw: bytes, where: str) -> dict[str, Any]:
    """Reads a JSON object of any version and size, such as one written by Kafka. Raises :class:`MalformedValue`."""
    try:
        value = msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:
        raise MalformedValue(where, f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise MalformedValue(where, f"a JSON {type(value).__name__}, not an object")
    return value


def text(value: Json, field: str, where: str, default: str | None = None) -> str:
    """Reads a string field. Returns ``default`` if the field is absent. Raises :class:`MalformedValue` if it is not a
    string."""
    found = value.get(field, default)
    if not isinstance(found, str):
        raise MalformedValue(where, f"field {field!r} is {shown(found)}, not a string", field)
    return found


def number(value: Json, field: str, where: str, default: int | None = None, *, at_least: int | None = None) -> int:
    """Reads an integer field of at most 64 bits and checks its lower bound."""
    found = value.get(field, default)
    if not isinstance(found, int) or isinstance(found, bool) or abs(found) >= 1 << 63:
        raise MalformedValue(where, f"field {field!r} is {shown(found)}, not a 64-bit integer", field)
    if at_least is not None and found < at_least:
        raise MalformedValue(where, f"field {field!r} is {found}, less than {at_least}", field)
    return found


def optional_number(value: Json, field: str, where: str) -> int | None:
    """Like :func:`number`, but returns ``None`` if the field is absent or null."""
    return number(value, field, where) if value.get(field) is not None else None


def decimal(written: str, most: int) -> int | None:
    """Parses a decimal number from 0 to ``most``. Returns ``None`` for anything else."""
    if not (written.isascii() and written.isdigit() and len(written) <= len(str(most))):
        return None
    return found if (found := int(written)) <= most else None


def mapping(value: Json, field: str, where: str, default: Json | None = None) -> Json:
    """Reads an object field."""
    found = value.get(field, default)
    if not isinstance(found, dict):
        raise MalformedValue(where, f"field {field!r} is {shown(found)}, not an object", field)
    return found


def readable(value: Json, field: str, where: str, from_json: Callable[[Json, str], T]) -> tuple[tuple[T, ...], str]:
    """Reads a list of objects one by one, or returns an empty list if the field is absent. Leaves out what cannot be
    decoded; the second value says how many entries those are, and what is wrong with the first ("" if there are
    none)."""
    written = value.get(field, [])
    if not isinstance(written, list):
        return (), f"field {field!r} is {shown(written)}, not a list"
    found: list[T] = []
    problems: list[str] = []
    for number, one in enumerate(written, 1):
        if not isinstance(one, dict):
            problems.append(f"entry {number}: {shown(one)} is not an object")
            continue
        try:
            found.append(from_json(one, where))
        except MalformedValue as error:
            problems.append(f"entry {number}: {error.reason}")
    if not problems:
        return tuple(found), ""
    return tuple(found), f"{len(problems)} of {len(written)} {field} cannot be read, the first is {problems[0]}"


def shown(value: object, most: int = 60) -> str:
    """Quotes a value for an error message, even if the value nests too deeply for ``repr``."""
    try:
        written = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} nested very deeply"
    return written if len(written) <= most else written[: most - 1] + "…"


def plain(value: object) -> str:
    """Converts any value to a string. For purely informational fields, where some tools have written numbers."""
    return value if isinstance(value, str) else shown(value)
