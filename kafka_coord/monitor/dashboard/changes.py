"""Computes the changes between two versions of a document, to keep updates to pages small. Does no I/O.

A change ``[path, value]`` replaces the value at that path (keys and indexes). ``[path]`` removes a key, and ``[path,
values, "append"]`` appends to a list. The page applies the changes in order (assets/live.js).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET, Struct

Change = list[Any]


def changes(old: Any, new: Any) -> list[Change]:
    """Returns the changes from ``old`` to ``new``."""
    return list(_changes(old, new, []))


def _changes(old: Any, new: Any, path: list[str | int]) -> Iterator[Change]:
    if old == new and type(old) is type(new):
        return
    if isinstance(old, Struct) and type(old) is type(new) and not old.__struct_config__.array_like:
        old, new = _fields(old), _fields(new)
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() - new.keys():
            yield [[*path, key]]
        for key, value in new.items():
            if key in old:
                yield from _changes(old[key], value, [*path, key])
            else:
                yield [[*path, key], value]
    elif isinstance(old, list) and isinstance(new, list) and 0 < len(old) <= len(new):
        for at, (before, after) in enumerate(zip(old, new, strict=False)):
            yield from _changes(before, after, [*path, at])
        if len(new) > len(old):
            yield [path, new[len(old) :], "append"]
    else:
        yield [path, new]


def _fields(document: Struct) -> dict[str, Any]:
    """Returns the fields that are encoded."""
    found = {name: getattr(document, name) for name in document.__struct_fields__}
    return {name: value for name, value in found.items() if value is not UNSET}
