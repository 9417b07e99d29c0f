"""Decides how long the offsets of unused groups are kept, from what the brokers say.

The longest ``offsets.retention.minutes`` of any broker is in force. A retention that is shorter than the one in force
deletes offsets sooner, so it counts from the moment at which it was first seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from msgspec import field
from msgspec.structs import replace

from kafka_coord.errors import MalformedValue
from kafka_coord.model.codec import Count, JsonObject, Number

DEFAULT_OFFSETS_RETENTION_MS = 7 * 24 * 3600 * 1000
"""Kafka's default ``offsets.retention.minutes`` of 10080, in ms."""
RENEWED_AFTER_MS = 3600 * 1000
"""An entry is renewed once it is this old, in ms."""


class BrokersRetention(JsonObject, frozen=True):
    """What a broker said at ``seen_ms`` (ms since 1970). ``is_told`` is false if the broker does not tell its
    settings, so that Kafka's default is assumed."""

    retention_ms: Count
    seen_ms: Number
    is_told: bool = field(default=True, name="told")

    def is_current(self, now_ms: int) -> bool:
        """Returns whether the entry still counts. It does not once the broker's instance has been gone for longer than
        the broker would keep offsets."""
        return now_ms - self.seen_ms <= max(self.retention_ms, 2 * RENEWED_AFTER_MS)


class Retention(JsonObject, frozen=True, tag_field="version", tag=1):
    """The retention in force, in ms, and the time from which it counts, in ms since 1970. ``brokers`` contains what
    each broker said last."""

    in_force_ms: Count = DEFAULT_OFFSETS_RETENTION_MS
    since_ms: Number = 0
    brokers: Mapping[int, BrokersRetention] = field(default_factory=dict)

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
