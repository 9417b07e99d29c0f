"""What a group remembers, beside its offsets, about the topics that its subscriptions have covered (ADR 41)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from kafka_coord.model import json_fields
from kafka_coord.model.member import Subscription
from kafka_coord.model.settled import interests, interests_from_json, interests_to_json

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
