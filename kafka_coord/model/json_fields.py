"""Reads the JSON values in ZooKeeper strictly. Every error names the znode, the field and the reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kafka_coord.errors import MalformedValue, UnknownVersion

VERSION = 1
MAX_VALUE_BYTES = 900_000
"""The largest value this project stores (jute.maxbuffer is 1 MB for the whole request)."""

Json = Mapping[str, Any]


_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
"""One encoder for all values, because ``json.dumps`` with options builds a new one for each."""


def dump(value: Json) -> bytes:
    """Encodes compact UTF-8 JSON. Keeps the order of fields, because people read these values with zkCli."""
    return _ENCODER.encode(value).encode()


def load(raw: bytes, where: str) -> dict[str, Any]:
    """Reads a JSON object of version 1, including unknown fields. Raises :class:`MalformedValue` or
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
    """Reads a JSON object of any version and size, such as Kafka's own. Raises :class:`MalformedValue`."""
    try:
        value = json.loads(raw.decode())  # json.loads itself accepts surrogates and other encodings
        if b"\\u" in raw:
            dump(value)  # "\ud800" is valid JSON but not valid text, so it could never be written again
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise MalformedValue(where, f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise MalformedValue(where, f"a JSON {type(value).__name__}, not an object")
    return value


def text(value: Json, field: str, where: str, default: str | None = None) -> str:
    """Reads a string field. Returns ``default`` if it is absent. Raises :class:`MalformedValue` if it is not a
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


def mapping(value: Json, field: str, where: str, default: Json | None = None) -> Json:
    """Reads an object field."""
    found = value.get(field, default)
    if not isinstance(found, dict):
        raise MalformedValue(where, f"field {field!r} is {shown(found)}, not an object", field)
    return found


def objects(value: Json, field: str, where: str) -> list[Json]:
    """Reads a list of objects, or returns an empty list if the field is absent."""
    found = value.get(field, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise MalformedValue(where, f"field {field!r} is not a list of objects")
    return found


def shown(value: object, most: int = 60) -> str:
    """Quotes a value for an error message. JSON can nest deeper than ``repr`` can follow."""
    try:
        written = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} nested very deep"
    return written if len(written) <= most else written[: most - 1] + "…"


def plain(value: object) -> str:
    """Converts any value to a string. Some tools wrote numbers into fields that only people read."""
    return value if isinstance(value, str) else shown(value)
