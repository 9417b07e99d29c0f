"""ConsumerProtocol: what consumers put into JoinGroup and SyncGroup. A coordinator rarely has to read it."""

from __future__ import annotations

from collections.abc import Iterable

from kafka_coord.wire.errors import BadMessage
from kafka_coord.wire.messages import message

MAX_BYTES = 1 << 20
"""Of one subscription: a longer one is not looked into."""


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str]:
    """The topics that these subscriptions name; what cannot be read names none."""
    form = message("ConsumerProtocolSubscription")
    found: set[str] = set()
    for data in metadata:
        if len(data) > MAX_BYTES:
            continue
        try:
            version = min(int.from_bytes(data[:2], "big", signed=True), form.versions.last)
            found.update(form.decode(data, max(version, 0), 2).topics)
        except BadMessage:
            continue
    return frozenset(found)
