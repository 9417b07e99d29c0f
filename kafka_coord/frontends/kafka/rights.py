"""Tells operators, in a znode, that the broker denies this instance a right on the groups log."""

from __future__ import annotations

from contextlib import suppress

from kafka_coord.errors import NodeExists, NoNode
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store


def report_right(store: Store, broker_id: int, error: str) -> None:
    """Writes the broker's ``error`` to the instance's znode, or deletes the znode if there is none. The znode is
    ephemeral, so it does not outlive the instance. Safe to repeat. Raises :class:`StoreUnavailable`."""
    path = layout.missing_right(broker_id)
    if not error:
        with suppress(NoNode):
            store.delete(path, -1)
        return
    store.ensure_path(layout.MISSING_RIGHTS)
    with suppress(NodeExists):
        store.create(path, fields.dump({"version": fields.VERSION, "error": error}), ephemeral=True)
