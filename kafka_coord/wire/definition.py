"""Parses Kafka's message definitions: the fields of each message, with their types and versions.

The files in ``definitions/`` are Apache Kafka's (Apache License 2.0), without their comments. The files for KIP-848
are from Kafka 4.3.0, and all other files are from 3.9.2. Kafka documents the format in ``clients/src/main/resources``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

FIXED = {
    "bool": "?", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d", "uuid": "16s"
}  # fmt: skip
"""The :mod:`struct` formats of fixed-size types. A ``uuid`` is 16 bytes."""


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions from ``first`` to ``last`` inclusive. The range is empty if ``first`` is greater than ``last``."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def __iter__(self) -> Any:
        return iter(range(self.first, self.last + 1))

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Parses ``3``, ``0-9``, ``2+`` or ``none``."""
        if text == "none":
            return NO_VERSIONS
        first, _, last = text.partition("-")
        if first.endswith("+"):
            return cls(int(first[:-1]), 1 << 15)
        return cls(int(first), int(last or first))


NO_VERSIONS = Versions(1, 0)


@dataclass(frozen=True, slots=True)
class Field:
    """One field. For an array, ``type`` is the element type. If the type is a structure, ``struct`` is set. If
    ``flexible`` is not ``None``, it overrides the flexible versions of the message."""

    name: str
    type: str
    is_array: bool
    versions: Versions
    nullable: Versions
    tag: int | None
    tagged: Versions
    flexible: Versions | None
    ignorable: bool
    default: Any
    struct: Struct | None


@dataclass(frozen=True, slots=True)
class Struct:
    """A structure: the message itself, or the type of one of its fields."""

    name: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Definition:
    """A message. Only requests and responses have an ``api_key``."""

    name: str
    api_key: int | None
    versions: Versions
    flexible: Versions
    struct: Struct


def read_definition(name: str) -> Definition:
    """Returns the definition of the message called ``name``, such as ``JoinGroupRequest``."""
    raw = json.loads(files("kafka_coord.wire").joinpath("definitions", f"{name}.json").read_text())
    common = {struct["name"]: struct for struct in raw.get("commonStructs", ())}
    return Definition(
        name=name,
        api_key=raw.get("apiKey"),
        versions=Versions.parse(raw["validVersions"]),
        flexible=Versions.parse(raw["flexibleVersions"]),
        struct=_struct(name, raw["fields"], common),
    )


def _struct(name: str, fields: list[dict[str, Any]], common: dict[str, Any]) -> Struct:
    return Struct(name, tuple(_field(field, common) for field in fields))


def _field(raw: dict[str, Any], common: dict[str, Any]) -> Field:
    is_array, kind = raw["type"].startswith("[]"), raw["type"].removeprefix("[]")
    fields = raw.get("fields") or common.get(kind, {}).get("fields")
    flexible = raw.get("flexibleVersions")
    return Field(
        name=snake_case(raw["name"]),
        type=kind,
        is_array=is_array,
        versions=Versions.parse(raw["versions"]),
        nullable=Versions.parse(raw.get("nullableVersions", "none")),
        tag=raw.get("tag"),
        tagged=Versions.parse(raw.get("taggedVersions", "none")),
        flexible=Versions.parse(flexible) if flexible is not None else None,
        ignorable=raw.get("ignorable", False),
        default=_default(kind, raw.get("default"), is_array=is_array, is_struct=fields is not None),
        struct=_struct(kind, fields, common) if fields is not None else None,
    )


def _default(kind: str, given: Any, *, is_array: bool, is_struct: bool) -> Any:
    if given == "null":
        return None
    if is_array:
        return ()
    if is_struct:
        return ...  # means a structure with all default values
    if kind == "string":
        return given or ""
    if kind in {"bytes", "records"}:
        return b""
    if kind == "uuid":
        return bytes(16)
    if kind == "bool":
        return str(given).lower() == "true"
    return float(given or 0) if kind == "float64" else int(str(given or 0), 0)


def snake_case(name: str) -> str:
    """Converts a field's name, for example ``MemberId`` to ``member_id``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
