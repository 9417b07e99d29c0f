"""Reads stored offsets with what decides how long they are kept: when they were written, and when they expire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka_coord.channel.offset_details import with_details
from kafka_coord.channel.operations import decode_offset
from kafka_coord.errors import MalformedValue
from kafka_coord.model import CommittedOffset
from kafka_coord.model import json_fields as fields
from kafka_coord.model.partitions import MAX_PARTITION
from kafka_coord.zk import layout
from kafka_coord.zk.store import Delete, GetChildren, GetData, Node, Op, Store


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """An offset in ZooKeeper. ``version`` is that of its znode. ``details`` is the path of its details, if it has
    any."""

    path: str
    version: int
    value: CommittedOffset
    details: str | None = None

    @property
    def removal(self) -> list[Op]:
        return [Delete(self.path, self.version), *([Delete(self.details)] if self.details is not None else [])]


def read_kept(store: Store, group: str, topics: Sequence[str]) -> Mapping[str, list[StoredOffset]]:
    """Returns all offsets of the given topics, whether or not they belong to the present topics. Raises
    :class:`StoreError`."""
    listed = store.read_many([GetChildren(layout.topic_offsets(group, name)) for name in topics])
    found: dict[str, list[StoredOffset]] = {}
    for name, partitions in zip(topics, listed, strict=True):
        numbers = [
            number
            for text in (partitions if isinstance(partitions, tuple) else ())
            if (number := fields.decimal(text, MAX_PARTITION)) is not None
        ]
        nodes = store.read_many(
            [GetData(layout.offset(group, name, number)) for number in numbers]
            + [GetData(layout.offset_details(group, name, number)) for number in numbers]
        )
        found[name] = []
        for number, node, more in zip(numbers, nodes, nodes[len(numbers) :], strict=False):
            path = layout.offset(group, name, number)
            if isinstance(node, Node):
                where = layout.offset_details(group, name, number) if isinstance(more, Node) else None
                found[name].append(StoredOffset(path, node.stat.version, _value(path, node, more), where))
    return found


def outlives_retention(store: Store, group: str) -> bool:
    """Returns whether any of the group's offsets expires at a time that its client has set, and that has not come yet.
    Raises :class:`StoreError`."""
    (listing,) = store.read_many([GetChildren(layout.details(group))])
    kept = read_kept(store, group, listing) if isinstance(listing, tuple) else {}
    now_ms = store.clock.time() * 1000
    return any(one.value.expires_at_ms > now_ms for offsets in kept.values() for one in offsets)


def _value(path: str, node: Node, details: object) -> CommittedOffset:
    """Returns the stored offset. Of an unreadable one, only the time is known."""
    try:
        bare = CommittedOffset(decode_offset(node.data, path))
    except MalformedValue:
        bare = CommittedOffset(-1)
    return with_details(bare, node.stat.mzxid, details)._replace(committed_at_ms=node.stat.mtime_ms)
