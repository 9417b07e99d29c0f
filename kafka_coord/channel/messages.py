"""Encodes the messages of the socket channel (docs/socket-protocol.md) and decodes them strictly.

Functions that read a frame raise :class:`MalformedValue`, which names the message and the bad field. Functions that
write a frame return its fields without ``v``, ``id`` and ``type``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Self

import msgspec

from kafka_coord.errors import MalformedValue
from kafka_coord.model import Command, Member, TopicPartition, command_from_json
from kafka_coord.model import json_fields as fields
from kafka_coord.model.codec import Count, JsonObject, Number, Positive
from kafka_coord.model.names import RULE, is_legal
from kafka_coord.model.partitions import MAX_PARTITION, nested
from kafka_coord.model.unresolved import Unresolved, read_topics

WAIT_MS = 2_000
"""How long an instance may hold its response while a consumer is waiting for another coordinator, in ms."""
MAX_TEXT_CHARS = 1_000
"""The maximum number of characters in a secret, a client name or any other text in a registration."""


class MessageType(StrEnum):
    """The request types. The coordinator sends the last three; consumers send the others."""

    CLUSTER_METADATA = "cluster-metadata"
    REGISTER = "register"
    RESUME = "resume"
    COMMIT = "commit"
    COMMITTED = "committed"
    UNRESOLVED = "unresolved"
    LEAVE = "leave"
    PING = "ping"
    STOP_FETCHER = "stop-fetcher"
    START_FETCHER = "start-fetcher"


class Code(StrEnum):
    """The reasons for refusing a request. The codes for bad frames are in
    :class:`~kafka_coord.channel.frames.Fault`."""

    NOT_COORDINATOR = "not-coordinator"
    BAD_NAME = "bad-name"
    BAD_SUBSCRIPTION = "bad-subscription"
    BAD_VALUE = "bad-value"
    TIMEOUT_OUT_OF_RANGE = "timeout-out-of-range"
    DUPLICATE_CONSUMER = "duplicate-consumer"
    TOO_MANY_CONSUMERS = "too-many-consumers"
    TOO_MANY_CONNECTIONS = "too-many-connections"
    NOT_AUTHENTICATED = "not-authenticated"
    NOT_AUTHORISED = "not-authorised"
    SLOW_DOWN = "slow-down"
    NOT_REGISTERED = "not-registered"
    UNAVAILABLE = "unavailable"
    WRONG_INCARNATION = "wrong-incarnation"
    MEMBERSHIP_LOST = "membership-lost"
    UNKNOWN_MEMBERSHIP = "unknown-membership"
    SHUTTING_DOWN = "shutting-down"


_NEEDS_OFFSETS = frozenset({MessageType.COMMIT, MessageType.COMMITTED, MessageType.UNRESOLVED})

Offsets = Mapping[TopicPartition, int]


class FrameBody(JsonObject, frozen=True):
    """What a frame of one type says."""

    about: ClassVar[MessageType]

    @classmethod
    def from_json(cls, value: fields.Json, where: str = "", **of_znode: Any) -> Self:
        return super().from_json(value, where or cls.about, **of_znode)


# --- offsets and partitions ----------------------------------------------------------------------------------------


def write_offsets(offsets: Mapping[TopicPartition, int | None]) -> dict[str, dict[str, int | None]]:
    """Returns the offsets in the form ``{topic: {"partition": offset}}``."""
    return nested(offsets)


def read_offsets(frame: fields.Json, where: str) -> dict[TopicPartition, int]:
    """Reads the field ``offsets``, which only the requests in :data:`_NEEDS_OFFSETS` must contain."""
    offsets = {}
    for topic, partitions in fields.mapping(frame, "offsets", where, None if where in _NEEDS_OFFSETS else {}).items():
        for partition, offset in _partitions(topic, partitions, where):
            if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset < 1 << 63:
                raise MalformedValue(where, f"{fields.shown(offset)} is not an offset", "offsets")
            offsets[TopicPartition(topic, partition)] = offset
    return offsets


def _partitions(topic: str, partitions: Any, where: str, field_name: str = "offsets") -> list[tuple[int, Any]]:
    if not is_legal(topic):
        raise MalformedValue(where, f"topic {fields.shown(topic)} is not legal; use {RULE}", field_name)
    if not isinstance(partitions, dict):
        raise MalformedValue(
            where, f"the {field_name} of {topic!r} must be an object, not {fields.shown(partitions)}", field_name
        )
    parsed = []
    for written, value in partitions.items():
        number = fields.decimal(written, MAX_PARTITION)
        if number is None:
            raise MalformedValue(where, f"{fields.shown(written)} is not a partition number", field_name)
        parsed.append((number, value))
    return parsed


# --- cluster-metadata ----------------------------------------------------------------------------------------------


class Coordinator(JsonObject, frozen=True):
    """The elected instance. ``endpoint`` is the ``host:port`` where consumers can reach it, or ``None`` if it does not
    listen for them."""

    instance: Number
    epoch: Count
    endpoint: str | None = None


class MetadataQuestion(FrameBody, frozen=True, omit_defaults=True):
    """A consumer's request for the cluster metadata. The instance may hold its response for up to ``wait_ms`` while it
    waits for a coordinator that accepts consumers. A coordinator with the epoch ``not_epoch`` does not count: the
    consumer lost it or could not reach it."""

    wait_ms: Count = 0
    not_epoch: Count | None = None
    about: ClassVar[MessageType] = MessageType.CLUSTER_METADATA

    def to_json(self) -> dict[str, Any]:
        return super().to_json() if self.wait_ms > 0 else {}

    def wants(self, coordinator: Coordinator | None) -> bool:
        """Returns whether the request is waiting for this coordinator."""
        return coordinator is not None and coordinator.endpoint is not None and coordinator.epoch != self.not_epoch


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """An instance's response to a metadata request. ``brokers`` maps broker ids to the addresses in the brokers'
    registrations, and ``protocols`` maps listener names to protocols. ``instances`` contains the instances' addresses.
    ``coordinator`` is ``None`` while no coordinator is elected."""

    instance: int
    brokers: Mapping[int, Sequence[str]]
    instances: Sequence[str]
    coordinator: Coordinator | None
    protocols: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "instance": self.instance,
            "brokers": [{"id": broker, "endpoints": list(found)} for broker, found in sorted(self.brokers.items())],
            "protocols": dict(self.protocols),
            "instances": list(self.instances),
            "coordinator": self.coordinator.to_json() if self.coordinator else None,
        }

    @classmethod
    def from_json(cls, frame: fields.Json) -> ClusterMetadata:
        where = MessageType.CLUSTER_METADATA
        brokers = {}
        for broker in _list(frame, "brokers", where):
            if not isinstance(broker, dict):
                raise MalformedValue(where, f"a broker must be an object, not {fields.shown(broker)}")
            brokers[fields.number(broker, "id", where, at_least=0)] = _texts(broker, "endpoints", where)
        return cls(
            instance=fields.number(frame, "instance", where),
            brokers=brokers,
            instances=_texts(frame, "instances", where),
            coordinator=read_coordinator(frame, where),
            protocols={k: fields.plain(v) for k, v in fields.mapping(frame, "protocols", where).items()},
        )


def read_coordinator(frame: fields.Json, where: str) -> Coordinator | None:
    """Reads the field ``coordinator`` in a response to ``cluster-metadata`` or in a ``not-coordinator`` refusal."""
    if "coordinator" in frame and frame["coordinator"] is None:
        return None
    return Coordinator.from_json(fields.mapping(frame, "coordinator", where), where)


def _list(frame: fields.Json, name: str, where: str) -> list[Any]:
    found = frame.get(name)
    if not isinstance(found, list):
        raise MalformedValue(where, f"field {name!r} must be an array, not {fields.shown(found)}", name)
    return found


def _texts(frame: fields.Json, name: str, where: str) -> tuple[str, ...]:
    found = _list(frame, name, where)
    if not all(isinstance(one, str) for one in found):
        raise MalformedValue(where, f"field {name!r} must be an array of strings, not {fields.shown(found)}", name)
    return tuple(found)


# --- register ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Register:
    """A request to register. ``member`` is the content of the registration's znode. If the member's name is "", the
    coordinator generates one. ``resume_key`` is a random string that the consumer chose at startup; it lets the
    consumer take over a registration with the same key. If users are configured, ``secret`` authenticates the consumer.
    If ``auto_commit`` is set, the coordinator commits the offsets in the consumer's responses to pings."""

    group: str
    member: Member
    auto_commit: bool = True
    resume_key: str = ""
    secret: str | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        member = self.member.to_json()
        del member["version"]
        written = {"group": self.group, "consumer_id": self.member.consumer or None, **member}
        written["auto_commit"] = self.auto_commit
        if self.resume_key:
            written["resume_key"] = self.resume_key
        if self.secret is not None:
            written["secret"] = self.secret
        return written

    @classmethod
    def from_json(cls, frame: fields.Json) -> Register:
        """Reads the request. Does not check names, because invalid names have an error code of their own."""
        where = MessageType.REGISTER
        auto_commit = frame.get("auto_commit", True)
        if not isinstance(auto_commit, bool):
            raise MalformedValue(
                where, f"field 'auto_commit' must be true or false, not {fields.shown(auto_commit)}", "auto_commit"
            )
        for name in ("client", "host", "rack", "assignor", "secret", "resume_key"):
            if isinstance(frame.get(name), str) and len(frame[name]) > MAX_TEXT_CHARS:
                raise MalformedValue(
                    where, f"field {name!r} is {len(frame[name])} characters long; the limit is {MAX_TEXT_CHARS}", name
                )
        consumer = fields.optional_text(frame, "consumer_id", where) or ""
        fields.number(frame, "session_timeout_ms", where)  # only a registration over ZooKeeper may omit this field
        return cls(
            group=fields.text(frame, "group", where),
            member=Member.from_json(frame, consumer, 0, where),
            auto_commit=auto_commit,
            resume_key=fields.text(frame, "resume_key", where, ""),
            secret=fields.optional_text(frame, "secret", where),
        )


class Registered(FrameBody, frozen=True):
    """The response to ``register``: the member's name and incarnation, its session timeout and ping interval in ms, and
    the epoch of the coordinator."""

    consumer: str = msgspec.field(name="consumer_id")
    incarnation: Number
    session_timeout_ms: Positive
    ping_interval_ms: Positive
    epoch: Count
    about: ClassVar[MessageType] = MessageType.REGISTER


class Resume(FrameBody, frozen=True, omit_defaults=True):
    """A request to continue a membership on a new connection."""

    group: str
    consumer: str = msgspec.field(name="consumer_id")
    incarnation: Number
    resume_key: str
    secret: str | None = None

    about: ClassVar[MessageType] = MessageType.RESUME

    def __repr__(self) -> str:
        """Hides the secret."""
        return f"Resume({self.group!r}, {self.consumer!r}, {self.incarnation})"


def read_outstanding(frame: fields.Json) -> frozenset[str]:
    """Reads the response to ``resume``. Returns the names of the commands that are not acknowledged yet."""
    return frozenset(_texts(frame, "outstanding", MessageType.RESUME))


def read_refused(frame: fields.Json, where: str) -> frozenset[str]:
    """Reads the response to ``commit`` or ``leave``. Returns the topics that no longer exist."""
    return frozenset(_texts(frame, "refused", where))


# --- unresolved ----------------------------------------------------------------------------------------------------


def write_unresolved(unresolved: Unresolved) -> dict[str, Any]:
    """Returns the fields of an ``unresolved`` request."""
    refused = {} if unresolved.refused is None else {"refused": dict(unresolved.refused)}
    return {"awaited": nested(unresolved.awaited), "offsets": write_offsets(unresolved.ends), **refused}


def read_unresolved(frame: fields.Json) -> Unresolved:
    """Reads an ``unresolved`` request. Raises :class:`MalformedValue`."""
    where = MessageType.UNRESOLVED
    awaited = {}
    for topic, partitions in fields.mapping(frame, "awaited", where).items():
        for partition, reason in _partitions(topic, partitions, where, "awaited"):
            if not isinstance(reason, str) or len(reason) > MAX_TEXT_CHARS:
                raise MalformedValue(
                    where, f"{fields.shown(reason)} is not a reason of at most {MAX_TEXT_CHARS} characters", "awaited"
                )
            awaited[TopicPartition(topic, partition)] = reason
    refused = read_topics(frame, "refused", where) if "refused" in frame else None
    return Unresolved(awaited, read_offsets(frame, where), refused)


# --- ping and commands ---------------------------------------------------------------------------------------------


class Ping(FrameBody, frozen=True):
    """A ping. It confirms that all responses to pings up to ``heard`` arrived in time and their offsets are stored, and
    that the acknowledgements of all commands up to ``done`` are stored. Both are ids of the coordinator's own requests,
    or 0 for none."""

    heard: Count
    done: Count
    about: ClassVar[MessageType] = MessageType.PING


def write_command(name: str, command: Command) -> dict[str, Any]:
    """Returns the fields of a frame: the command's name and the fields of its znode."""
    written = command.to_json()
    del written["version"], written["type"]
    return {"command": name, **written}


def read_command(frame: fields.Json) -> tuple[str, Command]:
    """Reads a command and its name."""
    where = fields.text(frame, "type", "command")
    return fields.text(frame, "command", where), command_from_json(frame, where)
