"""The commands that the coordinator sends to a consumer: stop-fetcher and start-fetcher (docs/design.md, section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from msgspec import Meta, field

from kafka_coord.errors import MalformedValue
from kafka_coord.model import json_fields as fields
from kafka_coord.model.codec import Count, JsonObject, Name, Number, PartitionNumber, always, flat
from kafka_coord.model.partitions import PartitionSet, TopicPartition
from kafka_coord.model.streams import StreamNumber

NO_OFFSET = -1
"""Means that no offset is committed, so the consumer's ``auto.offset.reset`` decides where to begin."""


class CommandType(StrEnum):
    STOP_FETCHER = "stop-fetcher"
    START_FETCHER = "start-fetcher"


class StartPoint(JsonObject, frozen=True, omit_defaults=True, gc=False):
    """Where a fetcher starts: the offset of the next record, and the stream. If no offset is stored, ``offset`` is
    ``NO_OFFSET``. ``later`` then says that the partition came into being after the group's subscription first covered
    its topic, so that it begins at its beginning, whatever the consumer's ``auto_offset_reset``."""

    offset: Annotated[int, Meta(ge=NO_OFFSET, le=(1 << 63) - 1)]
    stream: StreamNumber = always(0)
    later: bool = False


class _Command(JsonObject, frozen=True, tag_field="type"):
    generation: Count
    epoch: Count
    incarnation: Number

    def to_json(self) -> dict[str, Any]:
        return {"version": fields.VERSION, **super().to_json()}


class StopFetcher(_Command, frozen=True, tag=CommandType.STOP_FETCHER.value):
    """Tells the consumer to stop fetching exactly ``partitions``, finish or drop their queued records, commit the
    consumed offsets, and acknowledge."""

    partitions: PartitionSet
    reason: str = ""
    type: ClassVar[CommandType] = CommandType.STOP_FETCHER

    def to_json(self) -> dict[str, Any]:
        return {  # by hand, because it is faster
            "version": fields.VERSION,
            "type": "stop-fetcher",
            "generation": self.generation,
            "epoch": self.epoch,
            "incarnation": self.incarnation,
            "partitions": {topic: sorted(numbers) for topic, numbers in self.partitions.by_topic()},
            "reason": self.reason,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str, **known: Any) -> Self:
        told = _WrittenStop.from_json(value, where, **known)
        return cls(told.generation, told.epoch, told.incarnation, PartitionSet(told.partitions), told.reason)


class _WrittenStop(_Command, frozen=True, tag=CommandType.STOP_FETCHER.value):
    """A ``stop-fetcher`` command as it is written."""

    partitions: dict[Name, list[PartitionNumber]]
    reason: str = ""


class StartFetcher(_Command, frozen=True, omit_defaults=True, tag=CommandType.START_FETCHER.value):
    """Tells the consumer to start fetching exactly the partitions in ``starts``, each from its offset and on its
    stream, and acknowledge. ``assignor`` is the one that the group uses, if the consumer requested another; otherwise,
    it is empty."""

    starts: Mapping[TopicPartition, StartPoint] = field(name="partitions")
    reason: str = always("")
    assignor: str = ""
    type: ClassVar[CommandType] = CommandType.START_FETCHER
    by_partition: ClassVar[tuple[str, ...]] = ("partitions",)

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str, **known: Any) -> Self:
        told = _WrittenStart.from_json(value, where, **known)
        starts = flat(told.partitions)
        return cls(told.generation, told.epoch, told.incarnation, starts, told.reason, told.assignor)

    @property
    def partitions(self) -> PartitionSet:
        return PartitionSet.of(self.starts)


class _WrittenStart(_Command, frozen=True, tag=CommandType.START_FETCHER.value):
    """A ``start-fetcher`` command as it is written."""

    partitions: dict[Name, dict[PartitionNumber, StartPoint]]
    reason: str = ""
    assignor: str = ""


Command = StopFetcher | StartFetcher


def command_from_json(value: fields.Json, where: str) -> Command:
    """Reads a command strictly. Raises :class:`MalformedValue` for a malformed value or an unknown type."""
    match value.get("type"):
        case CommandType.STOP_FETCHER:
            return StopFetcher.from_json(value, where)
        case CommandType.START_FETCHER:
            return StartFetcher.from_json(value, where)
        case other:
            raise MalformedValue(where, f"field 'type' is {fields.shown(other)}, not a type of command", "type")


# --- names of command znodes -----------------------------------------------------------------------------------------


class CommandId(NamedTuple):
    """A command's znode name, such as ``stop-0000000012``. Command ids are ordered by ``sequence``, which ZooKeeper
    assigns."""

    sequence: int
    type: CommandType
    name: str


NODE_PREFIX = {CommandType.STOP_FETCHER: "stop-", CommandType.START_FETCHER: "start-"}
"""The prefix shows the type, so that a listing alone shows which commands are outstanding."""


MAX_SEQUENCE = 10**19 - 1


def parse_command_id(name: str) -> CommandId | None:
    """Parses a command's znode name. Returns ``None`` for any other name."""
    for command_type, prefix in NODE_PREFIX.items():
        sequence = fields.decimal(name.removeprefix(prefix), MAX_SEQUENCE) if name.startswith(prefix) else None
        if sequence is not None:
            return CommandId(sequence, command_type, name)
    return None
