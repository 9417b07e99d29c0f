"""Reads and writes how long the offsets of unused groups are kept, which all instances share."""

from __future__ import annotations

import logging
from contextlib import suppress

from kafka_coord.errors import BadVersion, NodeExists, NoNode, StoreUnavailable
from kafka_coord.model import json_fields as fields
from kafka_coord.model.retention import Retention
from kafka_coord.zk import layout
from kafka_coord.zk.store import Node, SessionState, Store

log = logging.getLogger(__name__)

_ATTEMPTS = 5


def read_retention(store: Store) -> Retention:
    """Returns the retention in force, which is Kafka's default until an instance has written another. Raises
    :class:`StoreError`, and :class:`MalformedValue` if the znode cannot be read."""
    with suppress(NoNode):
        return _read(store)[0]
    return Retention()


def share_retention(store: Store, broker_id: int, retention_ms: int | None, now_ms: int) -> Retention:
    """Tells the other instances the broker's retention, in ms (``None`` if the broker does not tell it). Returns the
    retention that is in force. Raises :class:`StoreError`, and :class:`MalformedValue` if the znode cannot be read."""
    if store.session.state is not SessionState.CONNECTED:
        raise StoreUnavailable("the session is not connected")  # do not wait until it is
    for _ in range(_ATTEMPTS):
        before, version = Retention(), -1
        with suppress(NoNode):
            before, version = _read(store)
        after = before.told(broker_id, retention_ms, now_ms)
        if after == before:
            return before
        value = fields.dump(after.to_json())
        try:
            if version < 0:
                store.create(layout.RETENTION, value)
            else:
                store.set(layout.RETENTION, value, version)
        except (BadVersion, NodeExists, NoNode):
            continue  # another instance was faster
        if (after.in_force_ms, after.since_ms) != (before.in_force_ms, before.since_ms):
            log.info(
                "offsets of unused groups are now kept for another time before_ms=%d retention_ms=%d",
                *(before.in_force_ms, after.in_force_ms),
                extra={"event": "retention_changed"},
            )
        return after
    raise BadVersion(f"{layout.RETENTION} changed on every attempt", layout.RETENTION)


def _read(store: Store) -> tuple[Retention, int]:
    node = store.get(layout.RETENTION)
    return decode_retention(layout.RETENTION, node), node.stat.version


def decode_retention(where: str, node: Node) -> Retention:
    """Raises :class:`MalformedValue`."""
    return Retention.from_json(fields.load(node.data, where), where)
