"""Encodes the messages of the socket channel (docs/socket-protocol.md) and decodes them strictly.

Functions that read a frame raise :class:`MalformedValue`, which names the message and the bad field. Functions that
write a frame return its fields without ``v``, ``id`` and ``type``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

import msgspec

from kafka_coord.model import Command, Member, TopicPartition, command_from_json
from kafka_coord.model import json_fields as fields
from kafka_coord.model.codec import ByPartition, Count, JsonObject, Number, Positive, always, nested, read, unnested
from kafka_coord.model.member import Unresolved, read_topics

WAIT_MS = 2_000
"""How long an instance may hold its response while a consumer is waiting for another coordinator, in ms."""
MAX_TEXT_CHARS = 1_000
"""The maximum number of characters in a secret, a client name or any other text in a registration."""

Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARS)]


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
    def from_json(cls, value: fields.Json, where: str = "", **known: Any) -> Self:
        return super().from_json(value, where or cls.about, **known)


# --- offsets and partitions ----------------------------------------------------------------------------------------


def write_offsets(offsets: Mapping[TopicPartition, int | None]) -> dict[str, dict[str, int | None]]:
    """Returns the offsets in the form ``{topic: {"partition": offset}}``."""
    return nested(offsets)


def read_offsets(frame: fields.Json, where: str) -> dict[TopicPartition, int]:
    """Reads the field ``offsets``, which only the requests in :data:`_NEEDS_OFFSETS` must contain."""
    return unnested(frame.get("offsets", None if where in _NEEDS_OFFSETS else {}), ByPartition[Count], "offsets", where)


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


class ClusterMetadata(FrameBody, frozen=True):
    """An instance's response to a metadata request. ``brokers`` maps broker ids to the addresses in the brokers'
    registrations, and ``protocols`` maps listener names to protocols. ``instances`` contains the instances' addresses.
    ``coordinator`` is ``None`` while no coordinator is elected."""

    instance: Number
    brokers: Mapping[int, Sequence[str]]
    instances: Sequence[str]
    coordinator: Coordinator | None
    protocols: Mapping[str, str] = msgspec.field(default_factory=dict)
    about: ClassVar[MessageType] = MessageType.CLUSTER_METADATA

    def to_json(self) -> dict[str, Any]:
        brokers = [{"id": broker, "endpoints": list(found)} for broker, found in sorted(self.brokers.items())]
        return self.to_json_with(brokers={}) | {"brokers": brokers}

    @classmethod
    def from_json(cls, value: fields.Json, where: str = "", **known: Any) -> Self:
        told = _Brokers.from_json(value, where or cls.about)
        return super().from_json(
            value,
            where,
            brokers={broker.id: broker.endpoints for broker in told.brokers},
            protocols={name: fields.plain(one) for name, one in told.protocols.items()},
            **known,
        )


class _Broker(JsonObject, frozen=True):
    id: Count
    endpoints: tuple[str, ...]


class _Brokers(JsonObject, frozen=True):
    """The brokers as they are written. Their protocols may be anything."""

    brokers: tuple[_Broker, ...]
    protocols: dict[str, Any]


class _Refusal(JsonObject, frozen=True):
    coordinator: Coordinator | None


def read_coordinator(frame: fields.Json, where: str) -> Coordinator | None:
    """Reads the field ``coordinator`` in a ``not-coordinator`` refusal."""
    return _Refusal.from_json(frame, where).coordinator


# --- register ------------------------------------------------------------------------------------------------------


class Register(FrameBody, frozen=True, omit_defaults=True):
    """A request to register. ``member`` is the content of the registration's znode. If the member's name is "", the
    coordinator generates one. ``resume_key`` is a random string that the consumer chose at startup; it lets the
    consumer take over a registration with the same key. If users are configured, ``secret`` authenticates the consumer.
    If ``auto_commit`` is set, the coordinator commits the offsets in the consumer's responses to pings."""

    group: str
    member: Member
    auto_commit: bool = always(True)
    resume_key: Text = ""
    secret: Text | None = None
    about: ClassVar[MessageType] = MessageType.REGISTER

    def to_json(self) -> dict[str, Any]:
        member, value = self.member.to_json(), self.to_json_with(member=None)
        del member["version"], value["member"]
        return {"group": self.group, "consumer_id": self.member.consumer or None} | member | value

    @classmethod
    def from_json(cls, value: fields.Json, where: str = "", **known: Any) -> Self:
        """Reads the request. Does not check names, because invalid names have an error code of their own."""
        consumer = _Registering.from_json(value, where or cls.about).consumer_id or ""
        member = Member.from_json(value, where or cls.about, consumer=consumer, incarnation=0)
        return super().from_json(value, where, member=member, **known)

    def __repr__(self) -> str:
        """Hides the secret."""
        return f"Register({self.group!r}, {self.member!r}, {self.auto_commit}, {self.resume_key!r})"


class _Registering(JsonObject, frozen=True):
    """What a request to register demands beyond a registration."""

    session_timeout_ms: Count
    consumer_id: str | None = None
    client: Text | None = None
    host: Text | None = None
    rack: Text | None = None
    assignor: Text | None = None


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
    return frozenset(read(frame, tuple[str, ...], "outstanding", MessageType.RESUME))


def read_refused(frame: fields.Json, where: str) -> frozenset[str]:
    """Reads the response to ``commit`` or ``leave``. Returns the topics that no longer exist."""
    return frozenset(read(frame, tuple[str, ...], "refused", where))


# --- unresolved ----------------------------------------------------------------------------------------------------


def write_unresolved(unresolved: Unresolved) -> dict[str, Any]:
    """Returns the fields of an ``unresolved`` request."""
    refused = {} if unresolved.refused is None else {"refused": dict(unresolved.refused)}
    return {"awaited": nested(unresolved.awaited), "offsets": write_offsets(unresolved.ends), **refused}


def read_unresolved(frame: fields.Json) -> Unresolved:
    """Reads an ``unresolved`` request. Raises :class:`MalformedValue`."""
    where = MessageType.UNRESOLVED
    awaited = unnested(frame.get("awaited"), ByPartition[Text], "awaited", where)
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
    where = read(frame, str, "type", "command")
    return read(frame, str, "command", where), command_from_json(frame, where)
