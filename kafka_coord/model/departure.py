"""How a member went: it left, it expired, it was replaced, or it was evicted."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from kafka_coord.errors import MalformedValue
from kafka_coord.model import json_fields as fields
from kafka_coord.model.codec import Count, JsonObject, cut


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
    registration that vanishes without a farewell has expired.
    """

    kind: DepartureKind = msgspec.field(name="departure")
    after_ms: Count = 0
    by: str = ""

    def __post_init__(self) -> None:
        cut(self, by=300)

    def __str__(self) -> str:
        after = f" after {self.after_ms / 1000:g} s" if self.after_ms else ""
        return f"{self.kind}{after}{f' by {self.by}' if self.by else ''}"

    def to_bytes(self) -> bytes:
        return fields.dump(self.to_json())

    @classmethod
    def read(cls, data: bytes, where: str, otherwise_after_ms: int = 0) -> Departure:
        """Reads a farewell. Without one, and for one that is unreadable, the member has expired, after
        ``otherwise_after_ms``."""
        try:
            return cls.from_json(fields.load(data, where), where)
        except MalformedValue:
            return cls(DepartureKind.EXPIRED, otherwise_after_ms)


LEFT = Departure(DepartureKind.LEFT)
EXPIRED = Departure(DepartureKind.EXPIRED)
