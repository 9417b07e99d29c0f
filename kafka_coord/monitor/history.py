"""Reads the histories of groups and of the cluster, which the coordinator keeps in ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from kafka_coord.errors import MalformedValue, NoNode, NotFound
from kafka_coord.model import Action, Settled, Unreadable
from kafka_coord.model import json_fields as fields
from kafka_coord.model.action import change_to_group
from kafka_coord.model.histories import ClusterHistory, Trail
from kafka_coord.monitor.reading import Reading, plainly
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetData, Store


def read_trail(store: Store, group: str) -> Trail:
    """Returns the history of a managed group. Raises :class:`NotFound`, and :class:`MalformedValue` if nothing of it
    can be read."""
    path = layout.history(group)
    try:
        node = store.get(path)
    except NoNode:
        if store.exists(layout.group(group)) is None:
            raise NotFound(f"no group {group!r}") from None
        return Trail()
    try:
        return Trail.from_json(fields.load(node.data, path), path)
    except MalformedValue as error:
        raise MalformedValue(
            error.where, f"{error.reason} (the coordinator replaces it at its next decision)"
        ) from None


def read_cluster_history(store: Store) -> ClusterHistory:
    """Returns the history of the cluster, which is empty until a coordinator writes it. Raises
    :class:`MalformedValue`."""
    try:
        node = store.get(layout.HISTORY)
    except NoNode:
        return ClusterHistory()
    return ClusterHistory.from_json(fields.load(node.data, layout.HISTORY), layout.HISTORY)


def read_client_actions(store: Store, group: str) -> Trail:
    """Returns the operator actions on a client-assigned group. They are in the cluster's history, where each begins
    with the group's name (:func:`kafka_coord.monitor.operate.record`). Raises :class:`MalformedValue`."""
    found = read_cluster_history(store)
    actions = tuple(
        replace(one, change=change)
        for one in found.actions
        if (change := change_to_group(group, one.change)) is not None
    )
    return Trail(actions=actions, unreadable=found.unreadable)


def read_actions(store: Store, groups: Iterable[str]) -> tuple[dict[str, tuple[Action, ...]], list[Unreadable]]:
    """Returns the operator actions on each group, oldest first, and what is unreadable in the ``history`` and
    ``settled`` znodes."""
    reading, names, actions = Reading(store), tuple(groups), {}
    found = reading.all(GetData(path(name)) for name in names for path in (layout.history, layout.settled))
    for name in names:
        history, settled = layout.history(name), layout.settled(name)
        trail = reading.decode(history, found[GetData(history)], plainly(Trail.from_json)) or Trail()
        reading.unreadable += trail.unreadable
        reading.decode(settled, found[GetData(settled)], plainly(Settled.from_json))
        actions[name] = trail.actions
    return actions, reading.unreadable
