"""Two values that only the coordinator writes: a consumer's ledger, which records the partitions that the consumer
holds, and a group's target. A command and the ledger change that it causes are written in the same multi."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from msgspec import field
from msgspec.structs import force_setattr

from kafka_coord.errors import MalformedValue
from kafka_coord.model.codec import Count, JsonObject, Name, Number, always
from kafka_coord.model.json_fields import VERSION
from kafka_coord.model.member import Member
from kafka_coord.model.partitions import MAX_PARTITIONS_PER_VALUE, NO_PARTITIONS, PartitionSet, TopicPartition
from kafka_coord.model.streams import Streams, streams_from_json, streams_to_json


class Ledger(JsonObject, frozen=True, omit_defaults=True, tag_field="version", tag=1):
    """The partitions that one consumer holds, and its incarnation.

    A partition is *held* from the write of its start-fetcher command (``owned``) until its stop-fetcher command is
    written (``stopping``) and acknowledged, or until the incarnation is gone. ``generation`` is the newest generation
    for which the consumer was sent commands, or whose target it already matched. If the member has a
    ``rejoin_grace_ms``, ``place`` is a copy of its registration, which keeps its place in the group after the
    registration is gone. ``session_timeout_ms`` is that of the incarnation, or 0 if unknown: a coordinator that was
    elected after the session ended says how long it was. ``znode_version`` is not part of the stored value.
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
            "version": VERSION,
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
            "version": VERSION,
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
