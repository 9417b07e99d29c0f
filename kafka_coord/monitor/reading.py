"""Reads and decodes many znodes at once, and lists the unreadable ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from kafka_coord.coordinator.tolerant_reads import read_each
from kafka_coord.errors import MalformedValue
from kafka_coord.model import Unreadable
from kafka_coord.model import json_fields as fields
from kafka_coord.model.names import RULE, is_legal
from kafka_coord.zk import layout
from kafka_coord.zk.store import Node, Read, ReadResult, Store

T = TypeVar("T")

Decoder = Callable[[fields.Json, Node, str], T]
"""Decodes (JSON object, znode, path) into a value, or raises :class:`MalformedValue`."""


class Reading:
    """Reads znodes in rounds. ``unreadable`` collects each unreadable znode with the reason."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.unreadable: list[Unreadable] = []

    def many(self, reads: Iterable[Read]) -> tuple[ReadResult, ...]:
        """Sends all reads at once. If the ACL forbids a read, returns ``None`` and notes the znode as unreadable."""
        answers: list[ReadResult] = []
        for answer in read_each(self.store, tuple(reads)):
            if isinstance(answer, Unreadable):
                self.unreadable.append(answer)
            answers.append(None if isinstance(answer, Unreadable) else answer)
        return tuple(answers)

    def names(self, parent: str, listing: ReadResult) -> tuple[str, ...]:
        """Returns the legal names of a listing, and notes illegal names as unreadable. If the parent does not exist,
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
        cannot be decoded. With ``registration``, notes the incarnation of an undecodable znode for the planner.
        """
        if not isinstance(found, Node):
            return None
        if not found.data and empty is not None:
            return empty
        try:
            return decoder(fields.load(found.data, path), found, path)
        except MalformedValue as error:
            self.refuse(error.where, error.reason, found.stat.czxid if registration else 0)
            return empty

    def refuse(self, path: str, reason: str, incarnation: int = 0) -> None:
        self.unreadable.append(Unreadable(path, reason, incarnation))

    def by_group(self) -> dict[str, list[Unreadable]]:
        """Returns the unreadable znodes below each group."""
        found: dict[str, list[Unreadable]] = {}
        for one in self.unreadable:
            found.setdefault(one.path.removeprefix(f"{layout.GROUPS}/").partition("/")[0], []).append(one)
        return found


def split(found: Sequence[ReadResult], *lengths: int) -> list[Sequence[ReadResult]]:
    """Splits the results of one round into parts of these ``lengths``, which must add up to the length of ``found``."""
    parts: list[Sequence[ReadResult]] = []
    at = 0
    for length in lengths:
        parts.append(found[at : at + length])
        at += length
    if at != len(found):
        raise ValueError(f"{len(found)} results for {at} reads")
    return parts
