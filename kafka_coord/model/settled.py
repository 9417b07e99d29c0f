"""That a group is at rest, and as of which state of its znodes: the value of ``settled`` (ADR 12)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from kafka_coord.errors import MalformedValue
from kafka_coord.model import json_fields
from kafka_coord.model.member import Subscription, SubscriptionKind
from kafka_coord.model.names import is_legal


@dataclass(frozen=True, slots=True)
class Zxids:
    """Which state of a group's znodes something is known of: 0 where there is none.

    ``group`` and ``assignment`` are the zxids of the last write of those two (mzxid), ``ids``, ``owners`` and
    ``channel`` those of the last child that came or went (pzxid). ZooKeeper's transactions are counted once and for
    all, so equal zxids are an equal state: of members and their incarnations, ledgers, channels, settings and target.
    They say nothing of what is in registrations (never changed), in ledgers and below channels (changed by the
    coordinator only, and only after a member has come or gone or the target was changed).
    """

    group: int
    ids: int
    owners: int
    channel: int
    assignment: int

    def hold(self, ids: int, now: Zxids | None = None) -> bool:
        """Whether nothing has changed since, as far as is known: ``ids``, or all of them."""
        return self.ids == ids and now in (None, self)

    @classmethod
    def from_json(cls, value: json_fields.Json, where: str) -> Zxids:
        return cls(**{one.name: json_fields.number(value, one.name, where, at_least=0) for one in fields(cls)})


@dataclass(frozen=True, slots=True)
class Settled:
    """Nothing was to be done about a group as of ``zxids``, and of topics whose digest is ``topics``.

    ``subscriptions`` is what its ``members`` want, each kind and pattern once and all topics asked for by name in one:
    a coordinator that reads this need not read registrations. Of a group with members that take part over a socket
    nothing is written down, for whoever is elected has to know those.
    """

    zxids: Zxids
    topics: str
    members: int
    subscriptions: tuple[Subscription, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "version": json_fields.VERSION,
            "zxids": asdict(self.zxids),
            "topics": self.topics,
            "members": self.members,
            "wanted": sorted(topic for one in self.subscriptions for topic in one.topics),
            "patterns": [[str(one.kind), one.pattern] for one in self.subscriptions if one.is_wildcard],
        }

    @classmethod
    def from_json(cls, value: json_fields.Json, where: str) -> Settled:
        """Strict; raises :class:`MalformedValue`."""
        wanted, patterns = value.get("wanted"), value.get("patterns")
        if not isinstance(wanted, list) or not all(isinstance(topic, str) and is_legal(topic) for topic in wanted):
            raise MalformedValue(where, f"field 'wanted' is {json_fields.shown(wanted)}, not a list of topics")
        if not isinstance(patterns, list):
            raise MalformedValue(where, f"field 'patterns' is {json_fields.shown(patterns)}, not a list")
        by_name = (Subscription(SubscriptionKind.STATIC, dict.fromkeys(wanted, 1)),) if wanted else ()
        return cls(
            zxids=Zxids.from_json(json_fields.mapping(value, "zxids", where), where),
            topics=json_fields.text(value, "topics", where),
            members=json_fields.number(value, "members", where, at_least=0),
            subscriptions=(*by_name, *(_pattern(found, where) for found in patterns)),
        )


def interests(subscriptions: Iterable[Subscription]) -> tuple[Subscription, ...]:
    """The same interests in as few subscriptions as can be, in one order."""
    given = tuple({id(one): one for one in subscriptions}.values())
    topics = {topic for one in given if not one.is_wildcard for topic in one.topics}
    by_name = (Subscription(SubscriptionKind.STATIC, dict.fromkeys(sorted(topics), 1)),) if topics else ()
    patterns = sorted({(one.kind, one.pattern) for one in given if one.is_wildcard})
    return (*by_name, *(Subscription(kind, pattern=pattern) for kind, pattern in patterns))


def _pattern(found: object, where: str) -> Subscription:
    if not isinstance(found, list) or len(found) != 2 or not all(isinstance(part, str) for part in found):
        raise MalformedValue(where, f"pattern {json_fields.shown(found)} is not a kind and an expression")
    kind, pattern = found
    if kind == SubscriptionKind.STATIC:
        raise MalformedValue(where, "a static subscription is no pattern")
    return Subscription.from_json({"subscription": {pattern: 1}, "pattern": kind}, where)
