"""A consumer's registration: its subscription and its settings for rebalances (docs/design.md, section 3). And how a
member went, the topics that it may not read, and the partitions whose first end nobody has listed yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

import msgspec

from kafka_coord.errors import InvalidPattern, MalformedValue
from kafka_coord.model import json_fields as fields
from kafka_coord.model.codec import Count, JsonObject, Name, Number, Positive, always, cut, read
from kafka_coord.model.names import is_legal, legal, topic_filter, topic_pattern
from kafka_coord.model.partitions import MAX_PARTITION, MAX_STREAMS, TopicPartition

MAX_GRACE_MS = 7 * 24 * 3600 * 1000


INTERNAL_TOPICS = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__kafka_coord_groups"}
)
"""Kafka's internal topics and this project's groups log. Their records are not an application's."""


class SubscriptionKind(StrEnum):
    """``include`` and ``exclude`` are regular expressions as written. ``white_list`` and ``black_list`` are those of
    Kafka 0.8's consumers, in which a comma means ``|`` (:func:`~kafka_coord.model.names.topic_filter`)."""

    STATIC = "static"
    INCLUDE = "include"
    EXCLUDE = "exclude"
    WHITE_LIST = "white_list"
    BLACK_LIST = "black_list"


_EXCLUDING = frozenset({SubscriptionKind.EXCLUDE, SubscriptionKind.BLACK_LIST})
_OF_0_8 = frozenset({SubscriptionKind.WHITE_LIST, SubscriptionKind.BLACK_LIST})


class Mode(StrEnum):
    """How a member rebalances. An ``eager`` member stops all its partitions before it starts any, as in Kafka 0.8."""

    INCREMENTAL = "incremental"
    EAGER = "eager"


class Subscription(JsonObject, frozen=True):
    """The topics that a consumer subscribes to. For a static subscription, ``topics`` maps each topic to its number of
    streams. For all other kinds, ``pattern`` is a regular expression that must match whole topic names, and each topic
    gets ``streams`` streams."""

    kind: SubscriptionKind
    topics: Mapping[str, int] = msgspec.field(default_factory=dict)
    pattern: str = ""
    streams: int = 1

    @classmethod
    def to(cls, topics: Iterable[str] | Mapping[str, int], streams: int = 1) -> Subscription:
        """Returns a static subscription. Raises :class:`InvalidName`."""
        counted = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, streams)
        for topic in counted:
            legal("topic", topic)
        return cls(SubscriptionKind.STATIC, counted)

    @classmethod
    def matching(cls, pattern: str, *, exclude: bool = False, streams: int = 1) -> Subscription:
        """Returns a pattern subscription. Raises :class:`InvalidPattern`."""
        topic_pattern(pattern)
        return cls(SubscriptionKind.EXCLUDE if exclude else SubscriptionKind.INCLUDE, pattern=pattern, streams=streams)

    def __str__(self) -> str:
        if self.kind is SubscriptionKind.STATIC:
            return f"topics {', '.join(sorted(self.topics))}"
        return f"topics that {'do not ' * (self.kind in _EXCLUDING)}match {self.pattern!r}"

    @property
    def is_wildcard(self) -> bool:
        return self.kind is not SubscriptionKind.STATIC

    @property
    def expression(self) -> str:
        """The pattern as RE2 runs it."""
        return topic_filter(self.pattern) if self.kind in _OF_0_8 else self.pattern

    def wants(self, topic: str) -> bool:
        """Returns whether the consumer subscribes to ``topic``. A pattern includes an internal topic only if its name
        is one of the pattern's alternatives, as in ``flights|__consumer_offsets``."""
        if self.kind is SubscriptionKind.STATIC:
            return topic in self.topics
        return self._matches(topic) and (topic not in INTERNAL_TOPICS or self._names(topic))

    def leaves_out(self, topic: str) -> bool:
        """Returns whether the pattern matches an internal topic but does not name it."""
        is_internal = self.is_wildcard and topic in INTERNAL_TOPICS
        return is_internal and self._matches(topic) and not self._names(topic)

    def _matches(self, topic: str) -> bool:
        return topic_pattern(self.expression).matches(topic) is not (self.kind in _EXCLUDING)

    def _names(self, topic: str) -> bool:
        return self.kind not in _EXCLUDING and topic in self.expression.split("|")

    def knows(self, topic: str) -> bool:
        """Returns whether :meth:`wants` can answer without matching the pattern, which may take tens of
        milliseconds."""
        return self.kind is SubscriptionKind.STATIC or topic_pattern(self.expression).knows(topic)

    def to_json(self) -> dict[str, Any]:
        written = dict(sorted(self.topics.items())) if not self.is_wildcard else {self.pattern: self.streams}
        return {"subscription": written, "pattern": str(self.kind)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str, **_known: Any) -> Self:
        found = _Subscribed.from_json(value, where)
        if found.kind is SubscriptionKind.STATIC:
            for topic in found.subscription:
                if not is_legal(topic):
                    raise MalformedValue(where, f"subscribes to {topic[:60]!r}, which is not a legal topic name")
            return cls(found.kind, found.subscription)
        if len(found.subscription) != 1:
            what = f"a {found.kind} subscription must contain exactly one pattern, not {len(found.subscription)}"
            raise MalformedValue(where, what)
        ((pattern, streams),) = found.subscription.items()
        made = cls(found.kind, pattern=pattern, streams=streams)
        try:
            topic_pattern(made.expression)
        except InvalidPattern as error:
            raise MalformedValue(where, str(error)) from None
        return made


class _Subscribed(JsonObject, frozen=True):
    """The fields of a registration that are its subscription: topics or patterns, with their numbers of streams."""

    subscription: dict[str, Annotated[int, msgspec.Meta(ge=1, le=MAX_STREAMS)]]
    kind: SubscriptionKind = msgspec.field(name="pattern", default=SubscriptionKind.STATIC)


class Member(JsonObject, frozen=True, omit_defaults=True, tag_field="version", tag=1):
    """A consumer's live registration, as it was when it was read.

    ``incarnation`` is the czxid of its znode, so a consumer that returns under the same name is a different
    incarnation. Durations are in ms.

    - ``capacity``: a weight for the ``weighted`` assignor.
    - ``rack``: corresponds to Kafka's ``broker.rack``.
    - ``session_timeout_ms``: 0 if unknown.
    - ``gateway`` and ``address``: for a consumer without a ZooKeeper session, the broker id of the instance that
      registered it, and the consumer's address at that time; otherwise ``None``.
    - ``protocol`` and ``software``: for a Kafka client, its group protocol (as in ``group.protocol``), and the name and
      version of its library; otherwise ``None``.
    - ``process``: a random id that the consumer made when it started, or a Kafka client's member id; empty if unknown.
      It tells a consumer that registers again from another one of the same name (ADR 58).
    - ``rebalance_timeout_ms``: how long the member may take to give up partitions. For acknowledging a start, the
      longer of this and the group's limit applies. 0 means the group's limit.
    - ``follows_root``: whether a consumer with a ZooKeeper session follows ``/consumers/cluster``, or does not look up
      brokers and topics in ZooKeeper.
    """

    consumer: str
    incarnation: Number
    subscription: Subscription
    assignor: str | None = None
    capacity: Positive = 1
    rack: str | None = None
    mode: Mode = Mode.INCREMENTAL
    session_timeout_ms: Count = 0
    rejoin_grace_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_GRACE_MS)] = 0
    host: str | None = None
    client: str | None = None
    timestamp: str = always("")
    gateway: Number | None = None
    address: str | None = None
    protocol: str | None = None
    software: str | None = None
    rebalance_timeout_ms: Count = 0
    follows_root: bool = False
    process: str = ""
    of_znode: ClassVar[tuple[str, ...]] = ("consumer", "incarnation")

    def grace_ms(self, departure: Departure | None) -> int:
        """Returns how long the member's place is kept after it went, in ms. A Kafka client's place lasts no longer than
        its session, as in Kafka: once an instance has said that it expired, nobody comes back for it. (Without a
        farewell, its next incarnation may have registered since.)"""
        is_over = departure is not None and departure.is_told and departure.kind is DepartureKind.EXPIRED
        return 0 if is_over and self.protocol is not None else self.rejoin_grace_ms

    def to_json(self) -> dict[str, Any]:
        return self.to_json_with(subscription=None) | self.subscription.to_json()

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str, **known: Any) -> Self:
        """Also reads a timestamp that is a number, as some tools write it."""
        subscription = Subscription.from_json(value, where)
        timestamp = fields.plain(value.get("timestamp", ""))[:40]
        return super().from_json(value, where, subscription=subscription, timestamp=timestamp, **known)


class DepartureKind(StrEnum):
    LEFT = "left"
    """The member said goodbye."""
    EXPIRED = "expired"
    """Nothing was heard of the member within its session timeout: it crashed, or was cut off."""
    REPLACED = "replaced"
    """A client with the same static membership took its place."""
    EVICTED = "evicted"
    """An operator or a tool removed it."""


class Departure(JsonObject, frozen=True, omit_defaults=True, tag_field="version", tag=1):
    """How a member went. ``after_ms`` is the session timeout that it let pass, or 0 if unknown or not expired. ``by``
    says who removed or replaced it, if that was another client.

    A farewell is stored as the value of ``channel/<consumer>``, in the multi that deletes the registration. A
    registration that vanishes without a farewell has expired. ``is_told`` says whether there is one.
    """

    kind: DepartureKind = msgspec.field(name="departure")
    after_ms: Count = 0
    by: str = ""
    is_told: bool = True

    def __post_init__(self) -> None:
        cut(self, by=300)

    def __str__(self) -> str:
        after = f" after {self.after_ms / 1000:g} s" if self.after_ms else ""
        return f"{self.kind}{after}{f' by {self.by}' if self.by else ''}"

    @classmethod
    def read(cls, data: bytes, where: str, otherwise_after_ms: int = 0) -> Departure:
        """Reads a farewell. Without one, and for one that is unreadable, the member has expired, after
        ``otherwise_after_ms``."""
        try:
            return cls.from_bytes(data, where)
        except MalformedValue:
            return cls(DepartureKind.EXPIRED, otherwise_after_ms, is_told=False)


LEFT = Departure(DepartureKind.LEFT)
EXPIRED = Departure(DepartureKind.EXPIRED)


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


class Zxids(JsonObject, frozen=True):
    """One state of a group's znodes, as five zxids. The zxid of a znode that does not exist is 0.

    ``group`` and ``assignment`` are the zxids of the last write to the group's znode and to its target (mzxid).
    ``ids``, ``owners`` and ``channel`` are the zxids of the last child that was created or deleted there (pzxid).
    ZooKeeper never reuses a zxid, so if the zxids are equal, so are the members and incarnations, ledgers, channels,
    settings and target.

    They do not cover the values of registrations, because whoever changes them also requests a check of the group. Nor
    do they cover the values of ledgers and the commands in channels: a group at rest has no outstanding commands, and
    the coordinator writes ledgers and new commands only after a member has registered or left, or after the target has
    changed.
    """

    group: Count
    ids: Count
    owners: Count
    channel: Count
    assignment: Count

    def hold(self, ids: int, now: Zxids | None = None) -> bool:
        """Returns whether the group is still in this state. Compares ``ids`` and, if ``now`` is given, all its
        zxids."""
        return self.ids == ids and now in (None, self)


class Settled(JsonObject, frozen=True, tag_field="version", tag=1):
    """Records that a group in the state ``zxids`` needed no action. ``topics`` is the digest of its topics at that
    time.

    ``members`` is the number of members, and ``subscriptions`` combines their subscriptions: one to every topic that
    any of them names, and each distinct pattern. This saves the next coordinator from reading the registrations. A
    group with socket consumers is never recorded, because the next coordinator must know each of these consumers.
    """

    zxids: Zxids
    topics: str
    members: Count
    subscriptions: tuple[Subscription, ...]

    def to_json(self) -> dict[str, Any]:
        value = self.to_json_with(subscriptions=())
        del value["subscriptions"]
        return value | interests_to_json(self.subscriptions)

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str, **known: Any) -> Self:
        return super().from_json(value, where, subscriptions=interests_from_json(value, where), **known)


def interests(subscriptions: Iterable[Subscription]) -> tuple[Subscription, ...]:
    """Combines subscriptions: one to all topics subscribed to by name, then each distinct pattern, sorted."""
    given = tuple({id(one): one for one in subscriptions}.values())
    topics = {topic for one in given if not one.is_wildcard for topic in one.topics}
    by_name = (Subscription(SubscriptionKind.STATIC, dict.fromkeys(sorted(topics), 1)),) if topics else ()
    patterns = sorted({(one.kind, one.pattern) for one in given if one.is_wildcard})
    return (*by_name, *(Subscription(kind, pattern=pattern) for kind, pattern in patterns))


def interests_to_json(interests: Iterable[Subscription]) -> dict[str, Any]:
    """Returns the fields ``wanted`` (topics) and ``patterns`` (kind and expression) for a result of
    :func:`interests`."""
    given = tuple(interests)
    return {
        "wanted": sorted(topic for one in given for topic in one.topics),
        "patterns": [[str(one.kind), one.pattern] for one in given if one.is_wildcard],
    }


class _Interests(JsonObject, frozen=True):
    wanted: tuple[Name, ...]
    patterns: tuple[tuple[SubscriptionKind, str], ...]


def interests_from_json(value: Mapping[str, Any], where: str) -> tuple[Subscription, ...]:
    """Reads the fields that :func:`interests_to_json` returns. Raises :class:`MalformedValue`."""
    found = _Interests.from_json(value, where)
    if any(kind is SubscriptionKind.STATIC for kind, _ in found.patterns):
        raise MalformedValue(where, "a static subscription is not a pattern")
    by_name = (Subscription(SubscriptionKind.STATIC, dict.fromkeys(found.wanted, 1)),) if found.wanted else ()
    written = ({"subscription": {pattern: 1}, "pattern": kind} for kind, pattern in found.patterns)
    return (*by_name, *(Subscription.from_json(one, where) for one in written))
