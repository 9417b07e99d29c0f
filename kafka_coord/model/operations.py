"""The values that operators write and read: requests, pauses, group settings, the elected instance, and past
decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kafka_coord.errors import InvalidName, MalformedValue
from kafka_coord.model import json_fields as fields
from kafka_coord.model.action import MAX_CHANGE
from kafka_coord.model.command import CommandType
from kafka_coord.model.member import Member
from kafka_coord.model.names import legal
from kafka_coord.model.partitions import NO_PARTITIONS, PartitionSet, TopicPartition, nested
from kafka_coord.model.retention import Retention

DEFAULT_ASSIGNOR = "sticky"
DEFAULT_REBALANCE_TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """A group's settings, stored as the value of its znode. Durations are in ms. Without an ``offsets_retention_ms``,
    the brokers' retention applies (:class:`~kafka_coord.model.retention.Retention`)."""

    assignor: str | None = None
    rebalance_timeout_ms: int = DEFAULT_REBALANCE_TIMEOUT_MS
    offsets_retention_ms: int | None = None

    def retention(self, of_brokers: Retention | None) -> Retention | None:
        """Returns for how long the group's offsets are kept, given the brokers' retention (``None`` if unknown)."""
        return of_brokers if self.offsets_retention_ms is None else Retention(self.offsets_retention_ms)

    def rebalance_timeout_for(self, member: Member, command: CommandType) -> int:
        """Returns how long the member may take to acknowledge a command, in ms. A member's own timeout can shorten the
        limit only for stops, because the member might not learn of a start until its next request."""
        own = member.rebalance_timeout_ms
        if own and command is CommandType.STOP_FETCHER:
            return own
        return max(self.rebalance_timeout_ms, own)

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"version": fields.VERSION}
        if self.assignor is not None:
            value["assignor"] = self.assignor
        value["rebalance_timeout_ms"] = self.rebalance_timeout_ms
        if self.offsets_retention_ms is not None:
            value["offsets_retention_ms"] = self.offsets_retention_ms
        return value

    @classmethod
    def from_json(cls, value: fields.Json, where: str) -> GroupSettings:
        return cls(
            assignor=fields.optional_text(value, "assignor", where),
            rebalance_timeout_ms=fields.number(
                value, "rebalance_timeout_ms", where, DEFAULT_REBALANCE_TIMEOUT_MS, at_least=1
            ),
            offsets_retention_ms=fields.number(value, "offsets_retention_ms", where, at_least=0)
            if value.get("offsets_retention_ms") is not None
            else None,
        )


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause, during which the group does not rebalance. Records who requested it and why, and when it began (ms since
    1970)."""

    by: str = ""
    reason: str = ""
    since_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"version": fields.VERSION, "by": self.by, "reason": self.reason, "since_ms": self.since_ms}

    @classmethod
    def from_json(cls, value: fields.Json, where: str) -> Pause:
        return cls(
            by=fields.text(value, "by", where, ""),
            reason=fields.text(value, "reason", where, ""),
            since_ms=fields.number(value, "since_ms", where, 0),
        )


class RequestType(StrEnum):
    REBALANCE = "rebalance"
    """Compute a new target for the group, even if nothing has changed."""
    EVICT = "evict"
    """Delete one consumer's registration, so that it must register again."""
    RESIGN = "resign"
    """Resign, with ``successor`` as the next coordinator. Refused if that instance is not running."""
    LOOK = "look"
    """Make a pass over the group now, because a pause or the settings have changed. Record ``action`` if it is set.
    Without a group, only record ``action`` in the cluster history."""
    RESET_OFFSETS = "reset-offsets"
    """Write ``offsets``. Refused while a member holds any of the partitions."""
    DELETE_OFFSETS = "delete-offsets"
    """Remove the offsets of ``partitions``. Refused while a member holds any of them."""
    DELETE_GROUP = "delete-group"
    """Remove the group and its offsets. Refused while the group has members, or if its offsets have changed since the
    zxid ``unchanged_since``."""
    CONVERT_GROUP = "convert-group"
    """Convert the group to the kind ``to``. Refused while the group has members, except for the classic clients in a
    managed group, which are evicted and rejoin. The instance that coordinates the group's partition of the groups log
    carries this out, rather than the elected coordinator."""


GROUP_REQUESTS = frozenset(RequestType) - {RequestType.RESIGN}
_REQUEST_TEXTS = ("group", "consumer", "reason", "by", "result", "message", "action", "change")
_DECISION_NUMBERS = ("decided_at_ms", "members", "partitions", "moved", "started", "stopped")


class GroupKind(StrEnum):
    """The kind of a group: who assigns its partitions."""

    MANAGED = "managed"
    """The coordinator assigns the partitions."""
    CLIENT_ASSIGNED = "client-assigned"
    """One member, the group leader, assigns the partitions. All members are stock Kafka clients."""


@dataclass(frozen=True, slots=True)
class Request:
    """An operator's request, stored as ``/consumers/requests/request-<seq>``.

    The coordinator responds by writing ``result`` ("done" or "refused") and ``message`` into the same znode. The
    requester reads the response and deletes the znode. The coordinator later removes responses that no one fetched.
    """

    type: RequestType
    group: str = ""
    consumer: str = ""
    reason: str = ""
    by: str = ""
    timestamp_ms: int = 0
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    partitions: PartitionSet = NO_PARTITIONS
    to: GroupKind | None = None
    successor: int | None = None
    """The broker id of the next coordinator, or ``None`` for any instance."""
    unchanged_since: int = 0
    """The request is refused if the offsets have changed since this zxid; 0 means no condition."""
    result: str = ""
    message: str = ""
    action: str = ""
    """The action that a ``look`` records, such as ``pause`` or ``settings``."""
    change: str = ""
    """A description of the change, with the old and new values, for readers of the history. Truncated to
    :data:`~kafka_coord.model.action.MAX_CHANGE`."""
    request_id: str = ""
    """The znode's name. Like ``znode_version``, it is not part of the stored value."""
    znode_version: int = 0

    @property
    def answered(self) -> bool:
        return self.result != ""

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"version": fields.VERSION, "type": str(self.type)}
        for name in _REQUEST_TEXTS:
            if found := getattr(self, name):
                value[name] = found[:MAX_CHANGE] if name == "change" else found
        value["timestamp_ms"] = self.timestamp_ms
        if self.offsets:
            value["offsets"] = nested(self.offsets)
        if self.partitions:
            value["partitions"] = self.partitions.to_json()
        if self.to is not None:
            value["to"] = str(self.to)
        if self.successor is not None:
            value["successor"] = self.successor
        if self.unchanged_since:
            value["unchanged_since"] = self.unchanged_since
        return value

    @classmethod
    def from_json(cls, value: fields.Json, request_id: str, where: str, znode_version: int = 0) -> Request:
        request_type = fields.choice(value, "type", where, RequestType)
        texts = {name: fields.text(value, name, where, "") for name in _REQUEST_TEXTS}
        try:
            if request_type in GROUP_REQUESTS and (texts["group"] or request_type is not RequestType.LOOK):
                legal("group", texts["group"])
            if request_type is RequestType.EVICT:
                legal("consumer", texts["consumer"])
        except InvalidName as error:
            raise MalformedValue(where, str(error)) from None
        converts = request_type is RequestType.CONVERT_GROUP or bool(fields.text(value, "to", where, ""))
        offsets: dict[TopicPartition, int] = {}
        for topic, found in fields.mapping(value, "offsets", where, {}).items():
            if not isinstance(found, dict):
                raise MalformedValue(where, f"offsets of topic {topic[:60]!r} are not an object")
            checked = PartitionSet.from_json({topic: ",".join(found)}, where)
            if len(checked) != len(found):
                raise MalformedValue(
                    where, f"offsets of topic {topic[:60]!r}: each key must be exactly one partition number"
                )
            for partition in found:
                offsets[TopicPartition(topic, int(partition))] = fields.number(found, partition, where, at_least=0)
        return cls(
            type=request_type,
            timestamp_ms=fields.number(value, "timestamp_ms", where, 0),
            offsets=offsets,
            partitions=PartitionSet.from_json(value.get("partitions", {}), where),
            to=fields.choice(value, "to", where, GroupKind, "") if converts else None,
            successor=fields.number(value, "successor", where, at_least=0) if "successor" in value else None,
            unchanged_since=fields.number(value, "unchanged_since", where, 0),
            request_id=request_id,
            znode_version=znode_version,
            **texts,
        )


@dataclass(frozen=True, slots=True)
class Process:
    """The process of an instance: its host, pid and release, and when it started (ms since 1970)."""

    host: str
    pid: int
    release: str
    started_ms: int

    def to_json(self) -> dict[str, Any]:
        return {"host": self.host, "pid": self.pid, "release": self.release, "started_ms": self.started_ms}

    @classmethod
    def from_json(cls, value: fields.Json, where: str) -> Process:
        return cls(
            host=fields.text(value, "host", where, ""),
            pid=fields.number(value, "pid", where, 0),
            release=fields.text(value, "release", where, ""),
            started_ms=fields.number(value, "started_ms", where, 0),
        )


@dataclass(frozen=True, slots=True)
class CoordinatorInfo:
    """An instance: the elected one, as stored in ``/consumers/coordinator``, or any running one, as stored (without an
    epoch) in ``coordinators/<id>``.

    Only ``coordinators/<id>`` carries ``process``, ``ready`` and ``waiting_for``. ``endpoints`` maps a name ("channel",
    "kafka", "http", or "https" with TLS) to ``host:port``. ``timestamp`` is ms since 1970, as a string. ``waiting_for``
    says what a rolling restart must wait for before it restarts the next instance; it is empty if there is nothing.
    """

    broker_id: int
    epoch: int
    timestamp: str
    endpoints: Mapping[str, str] = field(default_factory=dict)
    process: Process | None = None
    ready: bool = True
    waiting_for: str = ""

    @property
    def http_url(self) -> str | None:
        """The URL of the instance's HTTP server, or ``None`` if the instance does not run one."""
        found = (f"{scheme}://{self.endpoints[scheme]}" for scheme in ("https", "http") if scheme in self.endpoints)
        return next(found, None)

    def to_json(self) -> dict[str, Any]:
        value = {
            "version": fields.VERSION,
            "brokerid": self.broker_id,
            "epoch": self.epoch,
            "timestamp": self.timestamp,
            "endpoints": dict(self.endpoints),
        }
        if self.process is not None:
            value["process"] = self.process.to_json()
        if not self.ready:
            value["ready"] = False
        if self.waiting_for:
            value["waiting_for"] = self.waiting_for
        return value

    @classmethod
    def from_json(cls, value: fields.Json, where: str) -> CoordinatorInfo:
        return cls(
            broker_id=fields.number(value, "brokerid", where),
            epoch=fields.number(value, "epoch", where, 0),
            timestamp=fields.text(value, "timestamp", where, ""),
            endpoints={k: fields.plain(v) for k, v in fields.mapping(value, "endpoints", where, {}).items()},
            process=Process.from_json(fields.mapping(value, "process", where), where) if "process" in value else None,
            ready=value.get("ready") is not False,
            waiting_for=fields.text(value, "waiting_for", where, ""),
        )


class Cause(StrEnum):
    """Why a group got a new target."""

    OPERATOR = "operator-rebalance"
    """An operator requested a new target."""
    MEMBER_JOINED = "member-joined"
    MEMBER_EVICTED = "member-evicted"
    """A member did not acknowledge a command in time, or an operator evicted it."""
    GRACE_ENDED = "grace-ended"
    """A member vanished and did not return while its place was kept."""
    MEMBER_EXPIRED = "member-expired"
    """Nothing was heard of a member within its session timeout."""
    MEMBER_REPLACED = "member-replaced"
    """A client with the same static membership took a member's place."""
    MEMBER_LEFT = "member-left"
    """A member left on its own."""
    TOPIC_CHANGED = "topic-changed"
    """A subscribed topic was created, deleted or recreated, or its number of partitions changed."""
    ASSIGNOR_CHANGED = "assignor-changed"
    """The assignor changed, either in the group's settings or because the members request a different one."""
    MEMBER_CHANGED = "member-changed"
    """A member registered again with a new subscription, capacity or rack."""
    TAKEN_OVER = "taken-over"
    """The group was client-assigned, and became managed with its offsets. There is no new target."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One entry of a group's history: a generation, its reason, the partitions that moved, and how long each step took.

    ``causes`` lists every cause found in the same pass, most important first, and ``reason`` describes them as text.
    ``causes`` is empty in entries written by earlier releases. Durations are ms from the decision, or ``None`` until
    the step is complete. By ``stopped_ms``, every stop had been acknowledged; by ``settled_ms``, every partition had
    its owner and every command had been acknowledged.
    """

    generation: int
    epoch: int
    reason: str
    assignor: str
    decided_at_ms: int
    members: int
    partitions: int
    moved: int
    """The number of partitions that moved from one consumer to another. A partition that had no owner before, or has
    none afterwards, does not count."""
    started: int = 0
    stopped: int = 0
    stopped_ms: int | None = None
    settled_ms: int | None = None
    moves: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Maps each consumer to what it gained and lost, as text such as "flights[0-3]" (truncated if it is long)."""
    causes: tuple[Cause, ...] = ()

    @property
    def cause(self) -> Cause | None:
        """The most important cause, or ``None`` if no cause was recorded."""
        return self.causes[0] if self.causes else None

    def to_json(self) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "epoch": self.epoch,
            "causes": [str(cause) for cause in self.causes],
            "reason": self.reason,
            "assignor": self.assignor,
            "decided_at_ms": self.decided_at_ms,
            "members": self.members,
            "partitions": self.partitions,
            "moved": self.moved,
            "started": self.started,
            "stopped": self.stopped,
            "stopped_ms": self.stopped_ms,
            "settled_ms": self.settled_ms,
            "moves": {consumer: dict(found) for consumer, found in self.moves.items()},
        }

    @classmethod
    def from_json(cls, value: fields.Json, where: str) -> Decision:
        moves = fields.mapping(value, "moves", where, {})
        return cls(
            generation=fields.number(value, "generation", where),
            epoch=fields.number(value, "epoch", where),
            reason=fields.text(value, "reason", where, ""),
            assignor=fields.text(value, "assignor", where, ""),
            **{name: fields.number(value, name, where, 0) for name in _DECISION_NUMBERS},
            stopped_ms=fields.optional_number(value, "stopped_ms", where),
            settled_ms=fields.optional_number(value, "settled_ms", where),
            moves={
                consumer: {kind: fields.plain(what) for kind, what in found.items()}
                for consumer, found in moves.items()
                if isinstance(found, dict)
            },
            causes=_causes(value, where),
        )


def _causes(value: fields.Json, where: str) -> tuple[Cause, ...]:
    """Reads the causes. Skips causes that a later release added."""
    written = value.get("causes", [])
    if not isinstance(written, list):
        raise MalformedValue(where, "field 'causes' is not a list")
    return tuple(Cause(one) for one in written if one in Cause.__members__.values())


MAX_HISTORY = 50


def history_to_json(decisions: tuple[Decision, ...]) -> dict[str, Any]:
    """Returns the JSON form of the newest :data:`MAX_HISTORY` decisions, oldest first."""
    return {"version": fields.VERSION, "decisions": [d.to_json() for d in decisions[-MAX_HISTORY:]]}


def history_from_json(value: fields.Json, where: str) -> tuple[Decision, ...]:
    """Reads the decisions in a history that can be decoded, oldest first."""
    return fields.readable(value, "decisions", where, Decision.from_json)[0]
