"""What only the coordinator writes: a group's target; a consumer's ledger, which records the partitions that the
consumer holds; and the commands stop-fetcher and start-fetcher (docs/design.md, section 4). A command and the ledger
change that it causes are written in the same multi."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from msgspec import Meta, field
from msgspec.structs import force_setattr

from kafka_coord.errors import MalformedValue
from kafka_coord.model import json_fields as fields
from kafka_coord.model.codec import Count, JsonObject, Name, Number, PartitionNumber, always, flat
from kafka_coord.model.member import Member
from kafka_coord.model.partitions import (
    MAX_PARTITIONS_PER_VALUE,
    NO_PARTITIONS,
    PartitionSet,
    StreamNumber,
    Streams,
    TopicPartition,
    streams_from_json,
    streams_to_json,
)


class Ledger(JsonObject, frozen=True, omit_defaults=True, tag_field="version", tag=1):
    """The partitions that one consumer holds, and its incarnation.

    A partition is *held* from the write of its start-fetcher command (``owned``) until its stop-fetcher command is
    written (``stopping``) and acknowledged, or until the incarnation is gone. ``generation`` is the newest generation
    for which the consumer was sent commands, or whose target it already matched. If the member has a
    ``rejoin_grace_ms``, ``place`` is a copy of its registration, which keeps its place in the group after the
    registration is gone. ``session_timeout_ms`` is that of the incarnation, or 0 if unknown: a coordinator that was
    elected after the session ended says how long it was. ``process`` is that of the registration.
    ``znode_version`` is not part of the stored value.
    """

    consumer: str
    incarnation: Number
    owned: PartitionSet = always(NO_PARTITIONS)
    stopping: PartitionSet = always(NO_PARTITIONS)
    generation: Number = always(0)
    streams: Streams = field(default_factory=dict)
    place: Member | None = None
    topic_ids: Mapping[Name, str] = field(default_factory=dict)
    """Maps each topic to the identity that it had when its partitions were started. A recreated topic has a different
    identity."""
    session_timeout_ms: Count = 0
    process: str = ""
    znode_version: int = 0
    of_znode: ClassVar[tuple[str, ...]] = ("consumer", "znode_version")

    @property
    def held(self) -> PartitionSet:
        """The partitions that are owned or stopping. No other consumer may start them."""
        return self.owned | self.stopping

    def stream_of(self, partition: TopicPartition) -> int:
        return self.streams.get(partition, 0)

    def to_json(self) -> dict[str, Any]:
        held = self.held
        value = {  # by hand, because it is faster
            "version": fields.VERSION,
            "incarnation": self.incarnation,
            "owned": self.owned.to_json(),
            "stopping": self.stopping.to_json(),
            "generation": self.generation,
        }
        compact = {
            "streams": streams_to_json({tp: stream for tp, stream in self.streams.items() if tp in held}),
            "place": self.place.to_json() if self.place is not None else None,
            "topic_ids": {topic: one for topic, one in sorted(self.topic_ids.items()) if held.of_topic(topic)},
            "session_timeout_ms": self.session_timeout_ms,
            "process": self.process,
        }
        return value | {name: one for name, one in compact.items() if one}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str, **known: Any) -> Self:
        """Raises :class:`MalformedValue`, also if the fields contradict each other."""
        ledger = super().from_json(value, where, streams={}, place=None, **known)
        if not ledger.owned.isdisjoint(ledger.stopping):
            raise MalformedValue(where, f"both owned and stopping: {ledger.owned & ledger.stopping}")
        streams, place = streams_from_json(value.get("streams", {}), ledger.held, where), value.get("place")
        if place is not None:
            place = Member.from_json(place, where, consumer=ledger.consumer, incarnation=ledger.incarnation)
        if streams or place:
            force_setattr(ledger, "streams", streams)
            force_setattr(ledger, "place", place)
        return ledger


class Hold(JsonObject, frozen=True, omit_defaults=True):
    """What one consumer held when a backup was made, and the ``process`` that it was (see :class:`Member`)."""

    partitions: PartitionSet
    process: str = ""

    def is_over(self, member: Member | None) -> bool:
        """Returns whether ``member``, who is registered under the consumer's name, is the same process. It registers
        only after it has stopped all that it held. A name alone proves nothing: the process of that name may be new,
        and the former one may still be reading."""
        return member is not None and bool(self.process) and member.process == self.process


class Holds(JsonObject, frozen=True, tag_field="version", tag=1):
    """What a restored group's members held when the backup was made, by consumer (ADR 58). Nobody is given these
    partitions until their hold is over, or a coordinator has waited for ``for_ms``, the longest session timeout."""

    for_ms: Count
    consumers: Mapping[Name, Hold]
    znode_version: int = 0
    of_znode: ClassVar[tuple[str, ...]] = ("znode_version",)

    def remaining(self, members: Mapping[str, Member]) -> dict[str, Hold]:
        return {name: hold for name, hold in self.consumers.items() if not hold.is_over(members.get(name))}


class Assignment(JsonObject, frozen=True, omit_defaults=True, tag_field="version", tag=1):
    """The target of a group: which consumer should own which partitions. It names consumers, not incarnations.

    ``inputs`` is the digest of the inputs that the target was computed from. If the assignor decides the streams, as
    ``range`` does, ``streams`` holds the stream of each partition, by consumer. ``timestamp_ms`` is the wall-clock time
    of the decision.
    """

    generation: Count
    epoch: Count
    inputs: str
    assignor: str
    reason: str
    members: Mapping[str, PartitionSet]
    streams: Mapping[str, Streams] = field(default_factory=dict)
    timestamp_ms: Number = always(0)
    znode_version: int = 0
    of_znode: ClassVar[tuple[str, ...]] = ("znode_version",)

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {  # by hand, because it is faster
            "version": fields.VERSION,
            "generation": self.generation,
            "epoch": self.epoch,
            "inputs": self.inputs,
            "assignor": self.assignor,
            "reason": self.reason,
            "members": {consumer: owned.to_json() for consumer, owned in sorted(self.members.items())},
            "timestamp_ms": self.timestamp_ms,
        }
        streams = {consumer: streams_to_json(found) for consumer, found in sorted(self.streams.items()) if found}
        return value | {"streams": streams} if streams else value

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str, **known: Any) -> Self:
        """Raises :class:`MalformedValue`, also if a partition has two owners."""
        target = super().from_json({"reason": "", **value}, where, members={}, streams={}, **known)
        written = _Shares.from_json(value, where)
        members = _disjoint(written.members, where)
        streams = {
            consumer: streams_from_json(found, members.get(consumer, NO_PARTITIONS), where)
            for consumer, found in written.streams.items()
        }
        force_setattr(target, "members", members)
        force_setattr(target, "streams", streams)
        return target


class _Shares(JsonObject, frozen=True):
    """The members of a target as they are written."""

    members: dict[Name, Any]
    streams: dict[str, Any] = field(default_factory=dict)


def _disjoint(value: Mapping[str, Any], where: str) -> dict[str, PartitionSet]:
    """Reads the owners. Checks that no partition has two owners, which also limits how much memory a small value can
    occupy."""
    taken: dict[str, set[int]] = {}
    members = {}
    total = 0
    for consumer, written in value.items():
        owned = members[consumer] = PartitionSet.from_json(written, where)
        for topic, numbers in owned.by_topic():
            others = taken.setdefault(topic, set())
            if not numbers.isdisjoint(others):
                raise MalformedValue(where, f"partitions of topic {topic[:60]!r} have more than one owner")
            others |= numbers
        total += len(owned)
        if total > MAX_PARTITIONS_PER_VALUE:
            raise MalformedValue(where, f"names more than {MAX_PARTITIONS_PER_VALUE} partitions")
    return members


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
