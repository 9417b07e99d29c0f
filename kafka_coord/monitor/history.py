"""The last decisions of a group, as the coordinator keeps them."""

from __future__ import annotations

from kafka_coord.errors import MalformedValue, NoNode, NotFound
from kafka_coord.model import Decision, history_from_json
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store


def read_history(store: Store, group: str) -> tuple[Decision, ...]:
    """Oldest first, empty where nothing was decided yet. Raises :class:`NotFound`, :class:`MalformedValue`."""
    path = layout.history(group)
    try:
        node = store.get(path)
    except NoNode:
        if store.exists(layout.group(group)) is None:
            raise NotFound(f"no group {group!r}") from None
        return ()
    try:
        return history_from_json(fields.load(node.data, path), path)
    except MalformedValue as error:
        raise MalformedValue(
            error.where, f"{error.reason} (the coordinator replaces it at its next decision)"
        ) from None
