"""Strict reading of the JSON values on ZooKeeper: every failure names the znode, the field and the reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kafka_coord.errors import MalformedValue, UnknownVersion

VERSION = 1
MAX_VALUE_BYTES = 900_000
"""The limit for every value of this project (jute.maxbuffer is 1 MB for the whole request)."""

Json = Mapping[str, Any]


_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
"""``json.dumps`` with any option builds one for every value."""


def dump(value: Json) -> bytes:
    """Compact UTF-8 JSON. Field order is kept: people read these with zkCli."""
    return _ENCODER.encode(value).encode()


def load(raw: bytes, where: str) -> dict[str, Any]:
    """A JSON object of version 1, or :class:`MalformedValue` / :class:`UnknownVersion`. Unknown fields stay in it."""
    if len(raw) > MAX_VALUE_BYTES:
        raise MalformedValue(where, f"{len(raw)} bytes, more than the {MAX_VALUE_BYTES} a value may have")
    value = load_object(raw, where)
    version = value.get("version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise MalformedValue(where, f"field 'version' is {shown(version)}, not a number")
    if version != VERSION:
        raise UnknownVersion(where, f"version {version}; this release knows version {VERSION}")
    return value


def load_object(raw: bytes, where: str) -> dict[str, Any]:
    """A JSON object of any version and size, such as Kafka's own. Raises :class:`MalformedValue`."""
    try:
        value = json.loads(raw.decode())  # json alone lets surrogates and other encodings through
        if b"\\u" in raw:
            dump(value)  # "\ud800" is valid JSON but no valid text: it could never be written again
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise MalformedValue(where, f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise MalformedValue(where, f"a JSON {type(value).__name__} where an object belongs")
    return value


def text(value: Json, field: str, where: str, default: str | None = None) -> str:
    """A string field; ``default`` where it is absent, :class:`MalformedValue` where it is no string."""
    found = value.get(field, default)
    if not isinstance(found, str):
        raise MalformedValue(where, f"field {field!r} is {shown(found)}, not a string", field)
    return found


def number(value: Json, field: str, where: str, default: int | None = None, *, at_least: int | None = None) -> int:
    """An integer field within 64 bits; bounds are checked as well."""
    found = value.get(field, default)
    if not isinstance(found, int) or isinstance(found, bool) or abs(found) >= 1 << 63:
        raise MalformedValue(where, f"field {field!r} is {shown(found)}, not a 64-bit integer", field)
    if at_least is not None and found < at_least:
        raise MalformedValue(where, f"field {field!r} is {found}, less than {at_least}", field)
    return found


def mapping(value: Json, field: str, where: str, default: Json | None = None) -> Json:
    """An object field."""
    found = value.get(field, default)
    if not isinstance(found, dict):
        raise MalformedValue(where, f"field {field!r} is {shown(found)}, not an object", field)
    return found


def shown(value: object, most: int = 60) -> str:
    """A value as error messages quote it. JSON can nest deeper than ``repr`` can follow."""
    try:
        written = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} nested very deep"
    return written if len(written) <= most else written[: most - 1] + "…"


def plain(value: object) -> str:
    """A value as a string, whatever it is: for fields that only people read, into which some have written numbers."""
    return value if isinstance(value, str) else shown(value)
