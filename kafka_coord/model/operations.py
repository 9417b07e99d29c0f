"""The values that operators write and read: requests, pauses, group settings, the elected instance, and past
decisions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Self

from msgspec import field

from kafka_coord.errors import InvalidName, MalformedValue
from kafka_coord.model import json_fields as fields
from kafka_coord.model.assignment import CommandType
from kafka_coord.model.codec import ByPartition, Count, JsonObject, Number, Positive, always, cut, unnested
from kafka_coord.model.member import Member
from kafka_coord.model.names import legal
from kafka_coord.model.offsets import Retention
from kafka_coord.model.partitions import NO_PARTITIONS, PartitionSet, TopicPartition

DEFAULT_ASSIGNOR = "sticky"
DEFAULT_REBALANCE_TIMEOUT_MS = 60_000
MAX_CHANGE = 2_000
"""The most characters of a description of a change, with the old and new values."""


class GroupSettings(JsonObject, frozen=True, omit_defaults=True, tag_field="version", tag=1):
    """A group's settings, stored as the value of its znode. Durations are in ms. Without an ``offsets_retention_ms``,
    the brokers' retention applies (:class:`~kafka_coord.model.offsets.Retention`). Without a ``lag_warning_ms``,
    which the coordinator ignores, the site's ``serve.lag_warning_ms`` applies."""

    assignor: str | None = None
    rebalance_timeout_ms: Positive = always(DEFAULT_REBALANCE_TIMEOUT_MS)
    offsets_retention_ms: Count | None = None
    lag_warning_ms: Count | None = None

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


class Pause(JsonObject, frozen=True, tag_field="version", tag=1):
    """A pause, during which the group does not rebalance. Records who requested it and why, and when it began (ms since
    1970)."""

    by: str = ""
    reason: str = ""
    since_ms: Number = 0


class RequestType(StrEnum):
    REBALANCE = "rebalance"
    """Compute a new target for the group, even if nothing has changed."""
    EVICT = "evict"
    """Delete one consumer's registration, so that it must register again."""
    RESIGN = "resign"
    """Resign, with ``successor`` as the next coordinator. Refused if that instance is not running."""
    METADATA = "metadata"
    """Read brokers and topics from Kafka's own znodes again. Refused while those are not kept up to date."""
    LET_GO = "let-go"
    """Remove from the mirror the topics that it holds back. Refused if it holds back others than those of
    ``unchanged_since``."""
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
    """Convert the group to the kind ``to``, with its members. Refused while it has members that cannot go on in that
    kind. The instance that coordinates the group's partition of the groups log carries this out, rather than the
    elected coordinator."""


GROUP_REQUESTS = frozenset(RequestType) - {RequestType.RESIGN, RequestType.METADATA, RequestType.LET_GO}


class GroupKind(StrEnum):
    """The kind of a group: who assigns its partitions."""

    MANAGED = "managed"
    """The coordinator assigns the partitions."""
    CLIENT_ASSIGNED = "client-assigned"
    """One member, the group leader, assigns the partitions. All members are stock Kafka clients."""
    NATIVE = "native"
    """The brokers coordinate the group themselves. The instances pass its requests through."""


COORDINATED = (GroupKind.MANAGED, GroupKind.CLIENT_ASSIGNED)
"""The kinds of groups that the instances coordinate."""


class Request(JsonObject, frozen=True, omit_defaults=True, tag_field="version", tag=1):
    """An operator's request, stored as ``/consumers/requests/request-<seq>``.

    The coordinator responds by writing ``result`` ("done" or "refused") and ``message`` into the same znode. The
    requester reads the response and deletes the znode. The coordinator later removes responses that no one fetched.
    """

    type: RequestType
    group: str = ""
    consumer: str = ""
    reason: str = ""
    by: str = ""
    timestamp_ms: Number = 0
    offsets: Mapping[TopicPartition, Count] = field(default_factory=dict)
    partitions: PartitionSet = NO_PARTITIONS
    """The partitions whose offsets are to be deleted; in the refusal of a reset, those that do not exist."""
    to: GroupKind | None = None
    successor: Count | None = None
    """The broker id of the next coordinator, or ``None`` for any instance."""
    unchanged_since: Number = 0
    """The request is refused if the offsets, or the topics that the mirror holds back, have changed since this zxid; 0
    means no condition."""
    result: str = ""
    message: str = ""
    action: str = ""
    """The action that a ``look`` records, such as ``pause`` or ``settings``."""
    change: str = ""
    """A description of the change, with the old and new values, for readers of the history. Truncated to
    :data:`MAX_CHANGE`."""
    unrecorded: bool = False
    """Whether no history records the request: a tool that commits all the time would fill it."""
    request_id: str = ""
    """The znode's name. Like ``znode_version``, it is not part of the stored value."""
    znode_version: int = 0

    @property
    def answered(self) -> bool:
        return self.result != ""

    of_znode: ClassVar[tuple[str, ...]] = ("request_id", "znode_version")
    by_partition: ClassVar[tuple[str, ...]] = ("offsets",)

    def __post_init__(self) -> None:
        cut(self, change=MAX_CHANGE)

    @classmethod
    def from_json(cls, value: fields.Json, where: str, **known: Any) -> Self:
        """Raises :class:`MalformedValue`, also if the name of the group or of the consumer is not legal."""
        if "offsets" in value:
            known["offsets"] = unnested(value["offsets"], ByPartition[Count], "offsets", where)
        request = super().from_json(value, where, **{"request_id": where.rpartition("/")[2]} | known)
        try:
            if request.type in GROUP_REQUESTS and (request.group or request.type is not RequestType.LOOK):
                legal("group", request.group)
            if request.type is RequestType.EVICT:
                legal("consumer", request.consumer)
        except InvalidName as error:
            raise MalformedValue(where, str(error)) from None
        if request.type is RequestType.CONVERT_GROUP and request.to is None:
            raise MalformedValue(where, f"field 'to' is missing; use one of {', '.join(GroupKind)}", "to")
        return request


class Process(JsonObject, frozen=True):
    """The process of an instance: its host, pid and release, and when it started (ms since 1970)."""

    host: str = ""
    pid: Number = 0
    release: str = ""
    started_ms: Number = 0


class Restored(JsonObject, frozen=True, tag_field="version", tag=1):
    """How the tree was restored: the checksum of the backup, when that was made, and when the restore began (ms since
    1970). ``wait_ms`` is how long an instance waits before it stands for election, because the backup does not say who
    held what in the end; it is 0 once one was elected."""

    file: str
    made_ms: Count
    since_ms: Count
    wait_ms: Count = 0

    def to_bytes(self) -> bytes:
        return fields.dump(self.to_json())


class CoordinatorInfo(JsonObject, frozen=True, omit_defaults=True, tag_field="version", tag=1):
    """An instance: the elected one, as stored in ``/consumers/coordinator``, or any running one, as stored (without an
    epoch) in ``coordinators/<id>``.

    Only ``coordinators/<id>`` carries ``process``, ``ready``, ``waiting_for`` and ``metadata`` (``serve.metadata``).
    ``endpoints`` maps a name ("channel", "kafka", "http", or "https" with TLS) to ``host:port``. ``timestamp`` is ms
    since 1970, as a string. ``waiting_for`` says what a rolling restart must wait for before it restarts the next
    instance; it is empty if there is nothing.
    """

    broker_id: Number = field(name="brokerid")
    epoch: Number = 0
    timestamp: str = ""
    endpoints: Mapping[str, str] = field(default_factory=dict)
    process: Process | None = None
    ready: bool = True
    waiting_for: str = ""
    metadata: str = "auto"

    @property
    def http_url(self) -> str | None:
        """The URL of the instance's HTTP server, or ``None`` if the instance does not run one."""
        found = (f"{scheme}://{self.endpoints[scheme]}" for scheme in ("https", "http") if scheme in self.endpoints)
        return next(found, None)


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


class Decision(JsonObject, frozen=True):
    """One entry of a group's history: a generation, its reason, the partitions that moved, and how long each step took.

    ``causes`` lists every cause found in the same pass, most important first, and ``reason`` describes them as text.
    Durations are ms from the decision, or ``None`` until
    the step is complete. By ``stopped_ms``, every stop had been acknowledged; by ``settled_ms``, every partition had
    its owner and every command had been acknowledged.
    """

    generation: Number
    epoch: Number
    reason: str = ""
    assignor: str = ""
    decided_at_ms: Number = 0
    members: Number = 0
    partitions: Number = 0
    moved: Number = 0
    """The number of partitions that moved from one consumer to another. A partition that had no owner before, or has
    none afterwards, does not count."""
    started: Number = 0
    stopped: Number = 0
    stopped_ms: Number | None = None
    settled_ms: Number | None = None
    moves: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Maps each consumer to what it gained and lost, as text such as "flights[0-3]" (truncated if it is long)."""
    causes: tuple[Cause, ...] = ()

    @property
    def cause(self) -> Cause | None:
        """The most important cause, or ``None`` if no cause was recorded."""
        return self.causes[0] if self.causes else None

    @classmethod
    def from_json(cls, value: fields.Json, where: str, **known: Any) -> Self:
        """Skips causes that a later release added. Raises :class:`MalformedValue`."""
        causes = value.get("causes")
        if isinstance(causes, list):
            value = {**value, "causes": [one for one in causes if one in _CAUSES]}
        return super().from_json(value, where, **known)


_CAUSES = tuple(Cause)
MAX_HISTORY = 50
MAX_MOVES = 20
"""A decision records what at most this many consumers gained and lost."""


def history_to_json(decisions: tuple[Decision, ...]) -> dict[str, Any]:
    """Returns the JSON form of the newest :data:`MAX_HISTORY` decisions, oldest first."""
    return {"version": fields.VERSION, "decisions": [d.to_json() for d in decisions[-MAX_HISTORY:]]}
