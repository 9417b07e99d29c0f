"""Reads the last decisions of a group, which the coordinator keeps in ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterable

from kafka_coord.errors import MalformedValue, NoNode, NotFound
from kafka_coord.model import Decision, Settled, Unreadable, history_from_json
from kafka_coord.model import json_fields as fields
from kafka_coord.monitor.reading import Reading
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetData, Store


def read_history(store: Store, group: str) -> tuple[Decision, ...]:
    """The decisions, oldest first; empty if there are none yet. Raises :class:`NotFound`, :class:`MalformedValue`."""
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


def unreadable_history(store: Store, groups: Iterable[str]) -> list[Unreadable]:
    """The unreadable znodes among these groups' ``history`` and ``settled`` znodes."""
    reading, names = Reading(store), tuple(groups)
    found = reading.many(GetData(path) for name in names for path in (layout.history(name), layout.settled(name)))
    for name, history, settled in zip(names, found[::2], found[1::2], strict=True):
        reading.decode(layout.history(name), history, lambda value, _, where: history_from_json(value, where))
        reading.decode(layout.settled(name), settled, lambda value, _, where: Settled.from_json(value, where))
    return reading.unreadable
