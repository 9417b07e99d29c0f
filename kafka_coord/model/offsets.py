"""Committed offsets, how long they are kept, the lag after them, and which topics the group's subscriptions have
covered (ADR 41).

The longest ``offsets.retention.minutes`` of any broker is in force. A retention that is shorter than the one in force
deletes offsets sooner, so it counts from the moment at which it was first seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from kafka_coord.errors import MalformedValue
from kafka_coord.model import json_fields
from kafka_coord.model.codec import Count, JsonObject, Number
from kafka_coord.model.member import Subscription, interests, interests_from_json, interests_to_json
from kafka_coord.model.partitions import TopicPartition

DEFAULT_OFFSETS_RETENTION_MS = 7 * 24 * 3600 * 1000
"""Kafka's default ``offsets.retention.minutes`` of 10080, in ms."""
RENEWED_AFTER_MS = 3600 * 1000
"""An entry is renewed once it is this old, in ms."""


class BrokersRetention(JsonObject, frozen=True):
    """What a broker said at ``seen_ms`` (ms since 1970). ``is_told`` is false if the broker does not tell its
    settings, so that Kafka's default is assumed."""

    retention_ms: Count
    seen_ms: Number
    is_told: bool = msgspec.field(default=True, name="told")

    def is_current(self, now_ms: int) -> bool:
        """Returns whether the entry still counts. It does not once the broker's instance has been gone for longer than
        the broker would keep offsets."""
        return now_ms - self.seen_ms <= max(self.retention_ms, 2 * RENEWED_AFTER_MS)


class Retention(JsonObject, frozen=True, tag_field="version", tag=1):
    """The retention in force, in ms, and the time from which it counts, in ms since 1970. ``brokers`` contains what
    each broker said last."""

    in_force_ms: Count = DEFAULT_OFFSETS_RETENTION_MS
    since_ms: Number = 0
    brokers: Mapping[int, BrokersRetention] = msgspec.field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str, **known: Any) -> Self:
        """Raises :class:`MalformedValue`, also if a field is missing: a retention is never guessed."""
        if missing := set(cls.__struct_fields__) - value.keys():
            raise MalformedValue(where, f"no field {min(missing)!r}", min(missing))
        return super().from_json(value, where, **known)

    def expires_at_ms(self, unused_since_ms: int) -> int:
        """Returns when offsets expire that have not been used since ``unused_since_ms``."""
        return max(self.since_ms, unused_since_ms) + self.in_force_ms

    def told(self, broker_id: int, retention_ms: int | None, now_ms: int) -> Retention:
        """Returns the retention after a broker has said its own. ``None`` means that the broker does not tell it.
        Returns an equal value if nothing needs to be written."""
        said = BrokersRetention(
            DEFAULT_OFFSETS_RETENTION_MS if retention_ms is None else retention_ms, now_ms, retention_ms is not None
        )
        before = self.brokers.get(broker_id)
        if before is not None and 0 <= now_ms - before.seen_ms < RENEWED_AFTER_MS:
            said = replace(said, seen_ms=before.seen_ms)
        brokers = {number: one for number, one in self.brokers.items() if one.is_current(now_ms)} | {broker_id: said}
        longest_ms = max(one.retention_ms for one in brokers.values())
        since_ms = now_ms if longest_ms < self.in_force_ms else self.since_ms
        return Retention(longest_ms, since_ms, dict(sorted(brokers.items())))


EARLIEST, LATEST = -2, -1
"""They stand for a timestamp in a request for offsets: the first offset of a log, and the next one at its end."""
LEADERLESS, UNKNOWN_PARTITION = "the partition has no live leader", "the brokers do not know the partition"


@dataclass(slots=True)
class ListedOffsets:
    """The offsets that the brokers told, and one reason for each partition of which they told none."""

    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)


class LogRange(NamedTuple):
    """The offsets that a partition's log holds: from ``start`` to just before ``end``. Retention and DeleteRecords move
    the start."""

    start: int
    end: int


class Lag(NamedTuple):
    """The records that a group has not read. ``lag`` records are still in the log. ``gone`` records are not: they were
    deleted before the group read them. Both count offsets."""

    lag: int
    gone: int


def lag_of(committed: int | None, log: LogRange | None) -> Lag | None:
    """Returns the lag after the ``committed`` offset, or ``None`` if nothing is committed or the log is unknown.

    If the log was truncated and the committed offset is beyond its end, both numbers are 0.
    """
    if committed is None or log is None:
        return None
    first = max(committed, min(log.start, log.end))
    return Lag(max(0, log.end - first), first - committed)


def gone_text(gone: int) -> str:
    """Returns ``1,200 unread records are gone``."""
    return f"{gone:,} unread record{' is' if gone == 1 else 's are'} gone"


MAX_COVERAGE_BYTES = 400_000
_OF_OFFSETS = re.compile(r"([^ ]*) ([0-9]*)(?: ([0-9]+))?")


@dataclass(frozen=True, slots=True)
class Coverage:
    """The value of the znode ``offsets``: every subscription that the group's members have had, combined. A topic that
    one of them covers, but that has no znode below ``offsets``, came into being later."""

    subscriptions: tuple[Subscription, ...] = ()

    def covers(self, topic: str) -> bool:
        return any(one.wants(topic) for one in self.subscriptions)

    def covers_all(self, subscriptions: Iterable[Subscription]) -> bool:
        return interests((*self.subscriptions, *subscriptions)) == self.subscriptions

    def with_also(self, more: Iterable[Subscription]) -> Coverage:
        """Returns the coverage with more subscriptions. If it would become too large, returns only these."""
        found = Coverage(interests((*self.subscriptions, *more)))
        return found if len(found.to_bytes()) <= MAX_COVERAGE_BYTES else Coverage(interests(more))

    def to_bytes(self) -> bytes:
        value: dict[str, Any] = {"version": json_fields.VERSION, **interests_to_json(self.subscriptions)}
        return json_fields.dump(value)

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Coverage:
        """Reads the value. Kafka 0.8 writes an empty one. Raises :class:`MalformedValue`."""
        return cls(interests_from_json(json_fields.load(data, where), where)) if data else cls()


class TopicOfOffsets(NamedTuple):
    """The value of the znode ``offsets/<topic>``: the identity of the topic that the offsets below belong to, and the
    number of its partitions that existed when the group's subscription first covered it. ``first`` is ``None`` if that
    is unknown. Every later partition begins at its beginning. ``gone_since_ms`` is when a coordinator first found that
    the topic does not exist (ms since 1970), or ``None`` if it exists."""

    identity: str
    first: int | None = None
    gone_since_ms: int | None = None

    @property
    def data(self) -> bytes:
        first = "" if self.first is None else str(self.first)
        gone = "" if self.gone_since_ms is None else f" {self.gone_since_ms}"
        return (f"{self.identity} {first}{gone}" if first or gone else self.identity).encode()

    @classmethod
    def read(cls, data: bytes) -> TopicOfOffsets:
        """Reads the value. If it is not of this form, it becomes the identity as a whole."""
        written = data.decode(errors="replace")
        found = _OF_OFFSETS.fullmatch(written)
        if found is None:
            return cls(written)
        first, gone = json_fields.decimal(found[2], 1 << 31), json_fields.decimal(found[3] or "", 1 << 53)
        value = cls(found[1], first, gone)
        return value if value.data == data else cls(written)


class CommittedOffset(JsonObject, frozen=True, omit_defaults=True, tag_field="version", tag=1, gc=False):
    """A group's committed offset for one partition. ``leader_epoch`` is -1 if the client did not send one. The garbage
    collector does not track it, because a partition of the groups log may hold a million.

    The JSON form lacks the time, which the znode's stat records, and the topic's identity, which managed groups store
    once for each topic. ``topic_id`` is the identity of the topic that the offset belongs to (``TopicInfo.identity``),
    or empty if it is unknown. ``expires_at_ms`` is when the offset expires (ms since 1970), if the client has said so,
    or else -1.
    """

    offset: Count
    leader_epoch: Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)] = -1
    metadata: str = ""
    committed_at_ms: int = 0
    topic_id: str = ""
    expires_at_ms: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)] = -1
    of_znode: ClassVar[tuple[str, ...]] = ("committed_at_ms", "topic_id")

    def is_expired(self, now_ms: int, retention: Retention, since_ms: int) -> bool:
        """Returns whether an offset that nobody needs has expired, as in Kafka (KIP-211): at the time that the client
        has set, or the retention after the later of the commit and ``since_ms``. Times are in ms since 1970."""
        if self.expires_at_ms >= 0:
            return self.expires_at_ms <= now_ms
        return retention.expires_at_ms(max(since_ms, self.committed_at_ms)) <= now_ms

    @property
    def is_bare(self) -> bool:
        """Whether the offset has no details."""
        return self.leader_epoch < 0 and not self.metadata and self.expires_at_ms < 0

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = msgspec.to_builtins(self)
        if self.committed_at_ms or self.topic_id:
            for name in self.of_znode:
                value.pop(name, None)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str, **known: Any) -> Self:
        """Raises :class:`MalformedValue`, also for metadata that would not fit in a response to a client."""
        try:
            found = msgspec.convert(value, cls)
        except msgspec.ValidationError:
            found = super().from_json(value, where, **known)
        if found.committed_at_ms or found.topic_id:
            found = replace(found, committed_at_ms=0, topic_id="")
        if found.metadata and len(found.metadata.encode()) >= 1 << 15:
            raise MalformedValue(where, f"field 'metadata' is too long ({len(found.metadata)} characters)", "metadata")
        return found


GONE_FOR_MS = 86_400_000
"""How long the offsets of a deleted topic are kept, in ms: one day."""


def is_gone_long_enough(gone_since_ms: int, now_ms: int) -> bool:
    """Returns whether the offsets of a topic that was first found missing at ``gone_since_ms`` are to be deleted."""
    return gone_since_ms + GONE_FOR_MS <= now_ms


OffsetDetails = Mapping[TopicPartition, CommittedOffset]
"""Maps partitions to committed offsets with details."""
