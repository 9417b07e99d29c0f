"""How a member went: it left, it expired, it was replaced, or it was evicted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kafka_coord.errors import MalformedValue
from kafka_coord.model import json_fields as fields


class DepartureKind(StrEnum):
    LEFT = "left"
    """The member said goodbye."""
    EXPIRED = "expired"
    """Nothing was heard of the member within its session timeout: it crashed, or was cut off."""
    REPLACED = "replaced"
    """A client with the same static membership took its place."""
    EVICTED = "evicted"
    """An operator or a tool removed it."""


@dataclass(frozen=True, slots=True)
class Departure:
    """How a member went. ``after_ms`` is the session timeout that it let pass, or 0 if unknown or not expired. ``by``
    says who removed or replaced it, if that was another client.

    A farewell is stored as the value of ``channel/<consumer>``, in the multi that deletes the registration. A
    registration that vanishes without a farewell has expired.
    """

    kind: DepartureKind
    after_ms: int = 0
    by: str = ""

    def __str__(self) -> str:
        after = f" after {self.after_ms / 1000:g} s" if self.after_ms else ""
        return f"{self.kind}{after}{f' by {self.by}' if self.by else ''}"

    def to_bytes(self) -> bytes:
        value: dict[str, Any] = {"version": fields.VERSION, "departure": str(self.kind)}
        if self.after_ms:
            value["after_ms"] = self.after_ms
        if self.by:
            value["by"] = self.by
        return fields.dump(value)

    @classmethod
    def read(cls, data: bytes, where: str, otherwise_after_ms: int = 0) -> Departure:
        """Reads a farewell. Without one, and for one that is unreadable, the member has expired, after
        ``otherwise_after_ms``."""
        try:
            value = fields.load(data, where)
            return cls(
                fields.choice(value, "departure", where, DepartureKind),
                fields.number(value, "after_ms", where, 0, at_least=0),
                fields.text(value, "by", where, "")[:300],
            )
        except MalformedValue:
            return cls(DepartureKind.EXPIRED, otherwise_after_ms)


LEFT = Departure(DepartureKind.LEFT)
EXPIRED = Departure(DepartureKind.EXPIRED)
