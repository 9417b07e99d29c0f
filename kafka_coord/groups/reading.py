"""Reads and decodes many znodes at once, and collects the unreadable ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from kafka_coord.coordinator.tolerant_reads import read_each
from kafka_coord.errors import MalformedValue
from kafka_coord.model import Unreadable
from kafka_coord.model import json_fields as fields
from kafka_coord.model.names import RULE, is_legal
from kafka_coord.model.sequences import grouped
from kafka_coord.zk import layout
from kafka_coord.zk.store import Node, Read, ReadResult, Store

T = TypeVar("T")

Decoder = Callable[[str, Node], T]
"""Decodes a (path, znode) into a value. Raises :class:`MalformedValue`."""


def plainly(from_json: Callable[[fields.Json, str], T]) -> Decoder[T]:
    """Returns a decoder that ignores the znode's stat."""
    return lambda where, node: from_json(fields.load(node.data, where), where)


class Reading:
    """Reads many znodes per round trip and decodes them. ``unreadable`` collects the unreadable ones, with reasons."""

    def __init__(self, store: Store, unreadable: Iterable[Unreadable] = ()) -> None:
        self.store = store
        self.unreadable = list(unreadable)

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

    def names(self, parent: str, listing: ReadResult) -> tuple[str, ...]:
        """Returns the legal names in a listing, and notes illegal names as unreadable. If the parent does not exist,
        returns no names."""
        if not isinstance(listing, tuple):
            return ()
        legal = tuple(filter(is_legal, listing))
        if len(legal) < len(listing):
            for name in sorted({*listing} - {*legal}):
                self.refuse(f"{parent}/{name}", f"the name is not legal: {RULE}")
        return legal

    def decode(
        self, path: str, found: ReadResult, decoder: Decoder[T], empty: T | None = None, *, registration: bool = False
    ) -> T | None:
        """Returns the decoded value. Returns ``None`` if the znode does not exist, and ``empty`` if it holds no data or
        cannot be decoded. With ``registration``, also notes the incarnation of an undecodable znode, which the planner
        needs.
        """
        if not isinstance(found, Node):
            return None
        if not found.data and empty is not None:
            return empty
        try:
            return decoder(path, found)
        except MalformedValue as error:
            self.refuse(error.where, error.reason, found.stat.czxid if registration else 0)
            return empty

    def refuse(self, path: str, reason: str, incarnation: int = 0) -> None:
        self.unreadable.append(Unreadable(path, reason, incarnation))

    def by_group(self) -> dict[str, list[Unreadable]]:
        """Returns the unreadable znodes by group."""
        return grouped(self.unreadable, lambda one: group_of(one.path))


def group_of(path: str) -> str:
    """Returns the group that a path below :data:`layout.GROUPS` belongs to."""
    return path.removeprefix(f"{layout.GROUPS}/").partition("/")[0]
