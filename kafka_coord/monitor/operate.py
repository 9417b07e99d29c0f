"""Operators' changes that need no coordinator: pauses and group settings. A request for a pass follows each change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kafka_coord.coordinator.steps import AT_REST, GroupState
from kafka_coord.errors import BadVersion, MalformedValue, NoNode, NotFound, RequestRefused, Timeout
from kafka_coord.model import GroupSettings, Pause, Request, RequestType
from kafka_coord.model import json_fields as fields
from kafka_coord.monitor.cluster import read_cluster
from kafka_coord.monitor.requests import submit
from kafka_coord.monitor.snapshot import GroupSnapshot, read_groups
from kafka_coord.monitor.state import group_state
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store

EVERYWHERE = ""
"""Stands for all groups, in place of a group's name."""

_LOOK_AGAIN_S = 0.25


def pause(store: Store, group: str, *, by: str, reason: str) -> None:
    """Forbids rebalances of ``group``, or of all groups (:data:`EVERYWHERE`). Replaces an existing pause. Raises
    :class:`NotFound` if there is no such group.
    """
    require_group(store, group)
    value = Pause(by=by, reason=reason, since_ms=round(store.clock.time() * 1000))
    path = layout.paused(group) if group else layout.PAUSED
    store.ensure_path(path)
    store.set(path, fields.dump(value.to_json()))
    _request_pass(store, group, by=by, reason="paused")


def resume(store: Store, group: str, *, by: str) -> None:
    """Allows rebalances again. Raises :class:`RequestRefused` if nothing is paused, and :class:`NotFound`."""
    require_group(store, group)
    try:
        store.delete(layout.paused(group) if group else layout.PAUSED)
    except NoNode:
        if group and store.exists(layout.PAUSED) is not None:
            raise RequestRefused(
                f"group {group!r} itself is not paused: all groups are; lift that with: kafka-coord groups resume --all"
            ) from None
        what = f"group {group!r} is" if group else "the groups are"
        raise RequestRefused(f"{what} not paused; nothing was changed") from None
    _request_pass(store, group, by=by, reason="resumed")


def change_settings(
    store: Store, group: str, change: Callable[[GroupSettings], GroupSettings], *, by: str, create: bool = False
) -> GroupSettings:
    """Applies ``change`` to the group's settings, without losing a concurrent change. With ``create``, creates a
    missing group. Raises :class:`NotFound`.
    """
    path = layout.group(group)
    if create:
        store.ensure_path(path)
    while True:
        try:
            node = store.get(path)
        except NoNode:
            raise NotFound(f"no group {group!r}; use --create to prepare one before its first consumer") from None
        try:
            found = GroupSettings.from_json(fields.load(node.data, path), path) if node.data else GroupSettings()
        except MalformedValue:
            found = GroupSettings()  # writing them again repairs them
        changed = change(found)
        try:
            store.set(path, fields.dump(changed.to_json()), node.stat.version)
        except BadVersion:
            continue
        _request_pass(store, group, by=by, reason="settings changed")
        return changed


def _request_pass(store: Store, group: str, *, by: str, reason: str) -> None:
    """Asks the coordinator for a pass now, and does not wait for the answer; the coordinator removes it later. The
    global pause needs no such request, because the coordinator watches it."""
    if group:
        submit(store, Request(RequestType.LOOK, group=group, by=by, reason=reason))


@dataclass(frozen=True, slots=True)
class Settled:
    """The end of a wait: the group's state, and the generation of its target."""

    state: GroupState
    generation: int | None


def wait_until(
    store: Store,
    group: str,
    done: Callable[[GroupSnapshot, GroupState], bool],
    *,
    what: str,
    timeout_s: float,
    sleep: Callable[[float], object],
) -> Settled:
    """Looks at the group until ``done`` is true. Raises :class:`Timeout` with the outstanding commands, and
    :class:`NotFound`.
    """
    deadline = store.clock.monotonic() + timeout_s
    while True:
        snapshot = read_groups(store, [group], read_cluster(store)).get(group)
        if snapshot is None:
            raise NotFound(f"group {group!r} was removed meanwhile")
        seen = snapshot.observation
        state = group_state(seen)
        if done(snapshot, state):
            return Settled(state, seen.assignment.generation if seen.assignment else None)
        if store.clock.monotonic() >= deadline:
            waiting = ", ".join(f"{c} ({len(ids)})" for c, ids in snapshot.pending.items()) or "none"
            raise Timeout(
                f"group {group!r} is not {what} within {timeout_s:g} s: it is {state}; commands wait for: {waiting}"
            )
        sleep(_LOOK_AGAIN_S)


def settled(snapshot: GroupSnapshot, state: GroupState) -> bool:
    """Whether the group has settled."""
    del snapshot
    return state in AT_REST


def quiet(snapshot: GroupSnapshot, state: GroupState) -> bool:
    """Whether every command is acknowledged, so that nothing moves while the group is paused."""
    del state
    return not any(consumer in snapshot.observation.members for consumer in snapshot.pending)


def require_group(store: Store, group: str) -> None:
    """Raises :class:`NotFound` if there is no such group. Accepts :data:`EVERYWHERE`."""
    if group and store.exists(layout.group(group)) is None:
        raise NotFound(f"no group {group!r}")
