"""The difference between two versions of a JSON document, small enough to send at every change. Pure.

A change is ``[path, value]``: the value at that path (keys and indexes) is replaced. ``[path]`` removes a key, and
``[path, values, "append"]`` appends to a list. The page applies them in order (assets/live.js).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Change = list[Any]


def changes(old: Any, new: Any) -> list[Change]:
    """The changes that make ``old`` into ``new``."""
    return list(_changes(old, new, []))


def _changes(old: Any, new: Any, path: list[str | int]) -> Iterator[Change]:
    if old == new and type(old) is type(new):
        return
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
