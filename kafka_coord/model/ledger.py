"""Two values that only the coordinator writes: a consumer's ledger, which records the partitions that the consumer
holds, and a group's target. A command and the ledger change that it causes are written in the same multi."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka_coord.errors import MalformedValue
from kafka_coord.model import json_fields as fields
from kafka_coord.model.member import Member
from kafka_coord.model.names import is_legal
from kafka_coord.model.partitions import MAX_PARTITIONS_PER_VALUE, NO_PARTITIONS, PartitionSet, TopicPartition
from kafka_coord.model.streams import Streams, streams_from_json, streams_to_json


@dataclass(frozen=True, slots=True)
class Ledger:
    """The partitions that one consumer holds, and its incarnation.

    A partition is *held* from the write of its start-fetcher command (``owned``) until its stop-fetcher command is
    written (``stopping``) and acknowledged, or until the incarnation is gone. ``generation`` is the newest generation
    for which the consumer was sent commands, or whose target it already matched. If the member has a
    ``rejoin_grace_ms``, ``place`` is a copy of its registration, which keeps its place in the group after the
    registration is gone. ``session_timeout_ms`` is that of the incarnation, or 0 if unknown: a coordinator that was
    elected after the session ended says how long it was. ``znode_version`` is not part of the stored value.
    """

    consumer: str
    incarnation: int
    owned: PartitionSet = NO_PARTITIONS
    stopping: PartitionSet = NO_PARTITIONS
    generation: int = 0
    streams: Streams = field(default_factory=dict)
    place: Member | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Maps each topic to the identity that it had when its partitions were started. A recreated topic has a different
    identity."""
    session_timeout_ms: int = 0
    znode_version: int = 0

    @property
    def held(self) -> PartitionSet:
        """The partitions that are owned or stopping. No other consumer may start them."""
        return self.owned | self.stopping

    def stream_of(self, partition: TopicPartition) -> int:
        return self.streams.get(partition, 0)

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "version": fields.VERSION,
            "incarnation": self.incarnation,
            "generation": self.generation,
            "owned": self.owned.to_json(),
            "stopping": self.stopping.to_json(),
        }
        held = self.held
        streams = streams_to_json({tp: stream for tp, stream in self.streams.items() if tp in held})
        if streams:
            value["streams"] = streams
        topic_ids = {topic: identity for topic, identity in sorted(self.topic_ids.items()) if held.of_topic(topic)}
        if topic_ids:
            value["topic_ids"] = topic_ids
        if self.place is not None:
            value["place"] = self.place.to_json()
        if self.session_timeout_ms:
            value["session_timeout_ms"] = self.session_timeout_ms
        return value

    @classmethod
    def from_json(cls, value: fields.Json, consumer: str, znode_version: int, where: str) -> Ledger:
        """Reads the value strictly. Raises :class:`MalformedValue`."""
        incarnation = fields.number(value, "incarnation", where)
        owned = PartitionSet.from_json(value.get("owned", {}), where)
        stopping = PartitionSet.from_json(value.get("stopping", {}), where)
        if not owned.isdisjoint(stopping):
            raise MalformedValue(where, f"both owned and stopping: {owned & stopping}")
        place = value.get("place")
        if place is not None:
            place = Member.from_json(fields.mapping(value, "place", where), consumer, incarnation, where)
        return cls(
            consumer=consumer,
            incarnation=incarnation,
            owned=owned,
            stopping=stopping,
            generation=fields.number(value, "generation", where, 0),
            streams=streams_from_json(value.get("streams", {}), owned | stopping, where),
            place=place,
            topic_ids=_topic_ids(fields.mapping(value, "topic_ids", where, {}), where),
            session_timeout_ms=fields.number(value, "session_timeout_ms", where, 0, at_least=0),
            znode_version=znode_version,
        )


def _topic_ids(value: fields.Json, where: str) -> dict[str, str]:
    for topic in value:
        if not is_legal(topic):
            raise MalformedValue(where, f"{topic[:60]!r} in 'topic_ids' is not a legal topic name")
    return {topic: fields.text(value, topic, where) for topic in value}


@dataclass(frozen=True, slots=True)
class Assignment:
    """The target of a group: which consumer should own which partitions. It names consumers, not incarnations.

    ``inputs`` is the digest of the inputs that the target was computed from. If the assignor decides the streams, as
    ``range`` does, ``streams`` holds the stream of each partition, by consumer. ``timestamp_ms`` is the wall-clock time
    of the decision.
    """

    generation: int
    epoch: int
    inputs: str
    assignor: str
    reason: str
    members: Mapping[str, PartitionSet]
    streams: Mapping[str, Streams] = field(default_factory=dict)
    timestamp_ms: int = 0
    znode_version: int = 0

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "version": fields.VERSION,
            "generation": self.generation,
            "epoch": self.epoch,
            "inputs": self.inputs,
            "assignor": self.assignor,
            "reason": self.reason,
            "timestamp_ms": self.timestamp_ms,
            "members": {consumer: owned.to_json() for consumer, owned in sorted(self.members.items())},
        }
        streams = {consumer: streams_to_json(found) for consumer, found in sorted(self.streams.items()) if found}
        if streams:
            value["streams"] = streams
        return value

    @classmethod
    def from_json(cls, value: fields.Json, znode_version: int, where: str) -> Assignment:
        """Reads the value strictly. Raises :class:`MalformedValue`."""
        members = _disjoint(fields.mapping(value, "members", where), where)
        streams = {
            consumer: streams_from_json(found, members.get(consumer, NO_PARTITIONS), where)
            for consumer, found in fields.mapping(value, "streams", where, {}).items()
        }
        return cls(
            generation=fields.number(value, "generation", where, at_least=0),
            epoch=fields.number(value, "epoch", where, at_least=0),
            inputs=fields.text(value, "inputs", where),
            assignor=fields.text(value, "assignor", where),
            reason=fields.text(value, "reason", where, ""),
            members=members,
            streams=streams,
            timestamp_ms=fields.number(value, "timestamp_ms", where, 0),
            znode_version=znode_version,
        )


def _disjoint(value: fields.Json, where: str) -> dict[str, PartitionSet]:
    """Reads the owners. Checks that no partition has two owners, which also limits how much memory a small value can
    occupy."""
    taken: dict[str, set[int]] = {}
    members = {}
    total = 0
    for consumer, written in value.items():
        if not is_legal(consumer):
            raise MalformedValue(where, f"{consumer[:60]!r} in 'members' is not a legal consumer name")
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
