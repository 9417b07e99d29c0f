"""The value of the znode ``settled``, which records a group as at rest, and the state it was in (ADR 12)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kafka_coord.errors import MalformedValue
from kafka_coord.model import json_fields
from kafka_coord.model.codec import Count, JsonObject
from kafka_coord.model.member import Subscription, SubscriptionKind
from kafka_coord.model.names import is_legal


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


@dataclass(frozen=True, slots=True)
class Settled:
    """Records that a group in the state ``zxids`` needed no action. ``topics`` is the digest of its topics at that
    time.

    ``members`` is the number of members, and ``subscriptions`` combines their subscriptions: one to every topic that
    any of them names, and each distinct pattern. This saves the next coordinator from reading the registrations. A
    group with socket consumers is never recorded, because the next coordinator must know each of these consumers.
    """

    zxids: Zxids
    topics: str
    members: int
    subscriptions: tuple[Subscription, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "version": json_fields.VERSION,
            "zxids": self.zxids.to_json(),
            "topics": self.topics,
            "members": self.members,
            **interests_to_json(self.subscriptions),
        }

    @classmethod
    def from_json(cls, value: json_fields.Json, where: str) -> Settled:
        """Reads the value strictly. Raises :class:`MalformedValue`."""
        return cls(
            zxids=Zxids.from_json(json_fields.mapping(value, "zxids", where), where),
            topics=json_fields.text(value, "topics", where),
            members=json_fields.number(value, "members", where, at_least=0),
            subscriptions=interests_from_json(value, where),
        )


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


def interests_from_json(value: json_fields.Json, where: str) -> tuple[Subscription, ...]:
    """Reads the fields that :func:`interests_to_json` returns. Raises :class:`MalformedValue`."""
    wanted, patterns = value.get("wanted"), value.get("patterns")
    if not isinstance(wanted, list) or not all(isinstance(topic, str) and is_legal(topic) for topic in wanted):
        raise MalformedValue(where, f"field 'wanted' is {json_fields.shown(wanted)}, not a list of topics")
    if not isinstance(patterns, list):
        raise MalformedValue(where, f"field 'patterns' is {json_fields.shown(patterns)}, not a list")
    by_name = (Subscription(SubscriptionKind.STATIC, dict.fromkeys(wanted, 1)),) if wanted else ()
    return (*by_name, *(_pattern(found, where) for found in patterns))


def _pattern(found: object, where: str) -> Subscription:
    if not isinstance(found, list) or len(found) != 2 or not all(isinstance(part, str) for part in found):
        raise MalformedValue(where, f"pattern {json_fields.shown(found)} is not a [kind, expression] pair")
    kind, pattern = found
    if kind == SubscriptionKind.STATIC:
        raise MalformedValue(where, "a static subscription is not a pattern")
    return Subscription.from_json({"subscription": {pattern: 1}, "pattern": kind}, where)
