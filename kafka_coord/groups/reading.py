"""Reads and decodes many znodes at once, and collects the unreadable ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from kafka_coord.coordinator.tolerant_reads import Decoding, read_each
from kafka_coord.model import Unreadable
from kafka_coord.model import json_fields as fields
from kafka_coord.model.sequences import grouped
from kafka_coord.zk import layout
from kafka_coord.zk.store import Node, Read, ReadResult, Store

T = TypeVar("T")

Decoder = Callable[[str, Node], T]
"""Decodes a (path, znode) into a value. Raises :class:`MalformedValue`."""


def plainly(from_json: Callable[[fields.Json, str], T]) -> Decoder[T]:
    """Returns a decoder that ignores the znode's stat."""
    return lambda where, node: from_json(fields.load(node.data, where), where)


class Reading(Decoding):
    """Reads many znodes per round trip and decodes them. ``unreadable`` collects the unreadable ones, with reasons."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store

    def many(self, reads: Iterable[Read]) -> tuple[ReadResult, ...]:
        """Sends all reads at once and returns their results in order. If the ACL forbids a read, its result is
        ``None``, and the znode is noted as unreadable."""
        results: list[ReadResult] = []
        for result in read_each(self.store, tuple(reads)):
            if isinstance(result, Unreadable):
                self.unreadable.append(result)
            results.append(None if isinstance(result, Unreadable) else result)
        return tuple(results)

    def all(self, reads: Iterable[Read]) -> Mapping[Read, ReadResult]:
        """Sends all reads like :meth:`many` and maps each read to its result."""
        wanted = tuple(reads)
        return dict(zip(wanted, self.many(wanted), strict=True))

    def refuse(self, path: str, reason: str) -> None:
        self.unreadable.append(Unreadable(path, reason))

    def by_group(self) -> dict[str, list[Unreadable]]:
        """Returns the unreadable znodes by group."""
        return grouped(self.unreadable, lambda one: group_of(one.path))


def group_of(path: str) -> str:
    """Returns the group that a path below :data:`layout.GROUPS` belongs to."""
    return path.removeprefix(f"{layout.GROUPS}/").partition("/")[0]
