"""The value of the znode ``settled``, which records a group as at rest, and the state it was in (ADR 12)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from kafka_coord.errors import MalformedValue
from kafka_coord.model.codec import Count, JsonObject, Name
from kafka_coord.model.member import Subscription, SubscriptionKind


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
