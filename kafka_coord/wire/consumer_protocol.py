"""ConsumerProtocol: the subscriptions in JoinGroup and the assignments in SyncGroup."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafka_coord.wire.errors import BadMessage
from kafka_coord.wire.messages import message

MAX_BYTES = 1 << 20
"""The largest subscription in bytes that is decoded."""


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str]:
    """The topics that these subscriptions name; what cannot be read names none."""
    return frozenset(topic for data in metadata if (found := subscription(data)) for topic in found.topics)


def subscription(data: bytes) -> Any:
    """Decodes a member's subscription; ``None`` if it cannot be decoded."""
    return _read("ConsumerProtocolSubscription", data)


def assignment(data: bytes) -> Any:
    """Decodes a member's assignment; ``None`` if it cannot be decoded."""
    return _read("ConsumerProtocolAssignment", data)


def _read(name: str, data: bytes) -> Any:
    """Later versions are read as the newest that is known: fields are only ever added."""
    form = message(name)
    if not 2 <= len(data) <= MAX_BYTES:
        return None
    version = min(int.from_bytes(data[:2], "big", signed=True), form.versions.last)
    try:
        return form.decode(data, max(version, 0), 2)
    except BadMessage:
        return None
