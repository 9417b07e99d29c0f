"""The commands that the coordinator sends to a consumer: stop-fetcher and start-fetcher (docs/design.md, section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

from kafka_coord.errors import MalformedValue
from kafka_coord.model import json_fields as fields
from kafka_coord.model.names import is_legal
from kafka_coord.model.partitions import MAX_PARTITION, MAX_PARTITIONS_PER_VALUE, PartitionSet, TopicPartition, nested
from kafka_coord.model.streams import MAX_STREAMS

NO_OFFSET = -1
"""Means that no offset is committed, so the consumer's ``auto.offset.reset`` decides where to begin."""


class CommandType(StrEnum):
    STOP_FETCHER = "stop-fetcher"
    START_FETCHER = "start-fetcher"


class StartPoint(NamedTuple):
    """Where a fetcher starts: the offset of the next record, and the stream. If no offset is stored, ``offset`` is
    ``NO_OFFSET``. ``later`` then says that the partition came into being after the group's subscription first covered
    its topic, so that it begins at its beginning, whatever the consumer's ``auto_offset_reset``."""

    offset: int
    stream: int = 0
    later: bool = False

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"offset": self.offset, "stream": self.stream}
        return value | {"later": True} if self.later else value


@dataclass(frozen=True, slots=True)
class StopFetcher:
    """Tells the consumer to stop fetching exactly ``partitions``, finish or drop their queued records, commit the
    consumed offsets, and acknowledge."""

    generation: int
    epoch: int
    incarnation: int
    partitions: PartitionSet
    reason: str
    type: ClassVar[CommandType] = CommandType.STOP_FETCHER

    def to_json(self) -> dict[str, Any]:
        return _envelope(self) | {
            "partitions": {topic: sorted(numbers) for topic, numbers in self.partitions.by_topic()},
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class StartFetcher:
    """Tells the consumer to start fetching exactly the partitions in ``starts``, each from its offset and on its
    stream, and acknowledge. ``assignor`` is the one that the group uses, if the consumer requested another; otherwise,
    it is empty."""

    generation: int
    epoch: int
    incarnation: int
    starts: Mapping[TopicPartition, StartPoint]
    reason: str
    assignor: str = ""
    type: ClassVar[CommandType] = CommandType.START_FETCHER

    @property
    def partitions(self) -> PartitionSet:
        return PartitionSet.of(self.starts)

    def to_json(self) -> dict[str, Any]:
        starts = {tp: point.to_json() for tp, point in self.starts.items()}
        other = {"assignor": self.assignor} if self.assignor else {}
        return _envelope(self) | {"partitions": nested(starts), "reason": self.reason} | other


Command = StopFetcher | StartFetcher


def _envelope(command: Command) -> dict[str, Any]:
    return {
        "version": fields.VERSION,
        "type": str(command.type),
        "generation": command.generation,
        "epoch": command.epoch,
        "incarnation": command.incarnation,
    }


def command_from_json(value: fields.Json, where: str) -> Command:
    """Reads a command strictly. Raises :class:`MalformedValue` for a malformed value or an unknown type."""
    kind = fields.choice(value, "type", where, CommandType)
    partitions = fields.mapping(value, "partitions", where)
    for topic in partitions:
        if not is_legal(topic):
            raise MalformedValue(where, f"{topic[:60]!r} is not a legal topic name")
    generation = fields.number(value, "generation", where, at_least=0)
    epoch = fields.number(value, "epoch", where, at_least=0)
    incarnation = fields.number(value, "incarnation", where)
    reason = fields.text(value, "reason", where, "")
    if kind is CommandType.STOP_FETCHER:
        stops = PartitionSet({topic: _partition_list(found, where) for topic, found in partitions.items()})
        return StopFetcher(generation, epoch, incarnation, stops, reason)
    starts = {}
    for topic, found in partitions.items():
        if not isinstance(found, dict) or len(found) > MAX_PARTITIONS_PER_VALUE:
            what = f"must be an object with at most {MAX_PARTITIONS_PER_VALUE} start points"
            raise MalformedValue(where, f"the partitions of topic {topic!r} {what}")
        for partition, point in found.items():
            starts[TopicPartition(topic, _partition(partition, where))] = _start_point(point, where)
    return StartFetcher(generation, epoch, incarnation, starts, reason, fields.text(value, "assignor", where, ""))


def _partition_list(found: Any, where: str) -> list[int]:
    if not isinstance(found, list) or len(found) > MAX_PARTITIONS_PER_VALUE:
        raise MalformedValue(
            where, f"stop-fetcher partitions must be a list of at most {MAX_PARTITIONS_PER_VALUE} integers"
        )
    for partition in found:
        if not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition <= MAX_PARTITION:
            raise MalformedValue(where, f"{fields.shown(partition)} is not a partition number")
    return found


def _partition(written: str, where: str) -> int:
    number = fields.decimal(written, MAX_PARTITION)
    if number is None:
        raise MalformedValue(where, f"{written[:40]!r} is not a partition number")
    return number


def _start_point(point: Any, where: str) -> StartPoint:
    if not isinstance(point, dict):
        raise MalformedValue(where, f"{fields.shown(point)} is not a start point such as {{'offset': 12, 'stream': 0}}")
    offset = fields.number(point, "offset", where, at_least=NO_OFFSET)
    stream = fields.number(point, "stream", where, 0, at_least=0)
    if stream >= MAX_STREAMS:
        raise MalformedValue(where, f"stream {stream} must be below {MAX_STREAMS}")
    later = point.get("later", False)
    if not isinstance(later, bool):
        raise MalformedValue(where, f"field 'later' is {fields.shown(later)}, not true or false")
    return StartPoint(offset, stream, later)


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
