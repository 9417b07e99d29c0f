"""What the members of a group cannot resolve: the topics that a member may not read, and the partitions whose first end
nobody has listed yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from kafka_coord.errors import MalformedValue
from kafka_coord.model import json_fields as fields
from kafka_coord.model.codec import Count, JsonObject, Name, read
from kafka_coord.model.names import is_legal
from kafka_coord.model.partitions import MAX_PARTITION, TopicPartition

MAX_REASON_CHARS = 300


class Refusals(JsonObject, frozen=True, tag_field="version", tag=1):
    """The topics that one incarnation of a consumer is not allowed to read, each with the reason."""

    incarnation: Count
    topics: Mapping[str, str]

    @classmethod
    def from_json(cls, value: fields.Json, where: str, **known: Any) -> Self:
        """Raises :class:`MalformedValue`, also if a topic's name is not legal."""
        return super().from_json({**value, "topics": read_topics(value, "topics", where)}, where, **known)


@dataclass(frozen=True, slots=True)
class Unresolved:
    """What a member over a socket reports: the partitions that start at an end which is not known yet, each with the
    reason; the ends that the member has listed; and the topics that it may not read (``None`` if unchanged)."""

    awaited: Mapping[TopicPartition, str] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    refused: Mapping[str, str] | None = None

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self.awaited) | frozenset(self.ends)


def read_topics(value: fields.Json, field: str, where: str) -> dict[str, str]:
    """Reads an object that maps topics to reasons. Raises :class:`MalformedValue`."""
    topics = read(value, dict[Name, str], field, where) if field in value else {}
    return {topic: reason[:MAX_REASON_CHARS] for topic, reason in topics.items()}


def write_reason(reason: str) -> bytes:
    """Returns the value of a partition's ``unresolved`` znode."""
    return fields.dump({"version": fields.VERSION, "reason": reason[:MAX_REASON_CHARS]})


def read_reason(data: bytes) -> str:
    """Returns the reason in a partition's ``unresolved`` znode, or "" if it cannot be read: the znode's name alone
    matters."""
    try:
        return read({"reason": "", **fields.load(data, "unresolved")}, str, "reason", "unresolved")
    except MalformedValue:
        return ""


def awaited_partition(name: str) -> TopicPartition | None:
    """Returns the partition that a child of ``unresolved`` is about, or ``None`` if it is about a consumer."""
    topic, colon, number = name.rpartition(":")
    partition = fields.decimal(number, MAX_PARTITION)
    return TopicPartition(topic, partition) if colon and is_legal(topic) and partition is not None else None


def awaited_partitions(names: Iterable[str]) -> tuple[TopicPartition, ...]:
    """Returns the partitions among the children of ``unresolved``."""
    return tuple(found for name in names if (found := awaited_partition(name)) is not None)
