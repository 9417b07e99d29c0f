"""Sends operators' requests to the coordinator: creates the request's znode, waits for the response, and removes the
znode. Changes pauses and group settings in ZooKeeper directly, then asks the coordinator for a pass."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from msgspec import structs
from msgspec.structs import replace

from kafka_coord.channel.operations import recording
from kafka_coord.coordinator.steps import AT_REST, GroupState
from kafka_coord.errors import (
    BadVersion,
    MalformedValue,
    NoNode,
    NotFound,
    RequestRefused,
    SettingsError,
    StoreUnavailable,
    Timeout,
)
from kafka_coord.groups.cluster import Reading, read_cluster, read_coordinator
from kafka_coord.groups.group import QueuedRequest
from kafka_coord.groups.state import GroupSnapshot, group_state, read_groups
from kafka_coord.model import GroupSettings, PartitionSet, Pause, Request, RequestType, Unreadable
from kafka_coord.model.operations import DEFAULT_ASSIGNOR
from kafka_coord.zk import layout
from kafka_coord.zk.instance import HOLD_BACK_S, read_successor
from kafka_coord.zk.store import GetChildren, GetData, Node, Store

REFUSED = "refused"

OnProgress = Callable[[str], None]
"""Receives progress messages while a request waits for its response."""


@dataclass(frozen=True, slots=True)
class Acting:
    """Who acts, and why. ``by`` and ``reason`` go into the history. ``timeout_s`` is the time limit for each
    response."""

    by: str
    reason: str
    timeout_s: float
    on_progress: OnProgress


_LOOK_AGAIN_S = 1.0
"""The interval, in seconds, at which the request is read again in case its watch does not fire."""
_ELECTED_S = 0.05


def submit(store: Store, request: Request) -> str:
    """Writes the request and returns its id. Raises :class:`StoreUnavailable` if it is unknown whether the write took
    effect.
    """
    store.ensure_path(layout.REQUESTS)
    stamped = replace(request, timestamp_ms=round(store.clock.time() * 1000))
    try:
        path = store.create(layout.REQUEST_PREFIX, stamped.to_bytes(), sequence=True)
    except StoreUnavailable as error:
        raise StoreUnavailable(
            f"{error}; it is unknown whether the request was written; check 'kafka-coord coordinator requests'",
            error.path,
        ) from error
    return path.rpartition("/")[2]


def ask(store: Store, request: Request, timeout_s: float, on_progress: OnProgress) -> Request:
    """Submits the request, waits for the response, and removes the request. Returns the answered request, whose result
    is "done".

    Raises :class:`RequestRefused` with the coordinator's reason. If there is no response within ``timeout_s`` seconds,
    raises :class:`Timeout` and leaves the request in the queue.
    """
    request_id = submit(store, request)
    answered = await_answer(store, request_id, timeout_s, on_progress)
    with contextlib.suppress(StoreUnavailable):  # the coordinator removes old responses
        withdraw(store, request_id)
    if answered.result == REFUSED:
        raise RequestRefused(f"refused: {answered.message}")
    return answered


def await_answer(store: Store, request_id: str, timeout_s: float, on_progress: OnProgress) -> Request:
    """Waits up to ``timeout_s`` seconds for the response, and returns the answered request. Raises :class:`Timeout`,
    whose text says whether a coordinator is elected."""
    path = layout.request(request_id)
    deadline = store.clock.monotonic() + timeout_s
    changed = threading.Event()
    reported = False
    while True:
        changed.clear()
        request = _read(store, path, changed)
        if request is not None and request.answered:
            return request
        left_s = deadline - store.clock.monotonic()
        try:
            elected = read_coordinator(store)
        except StoreUnavailable as error:  # try again until the deadline
            whose = f", and none from ZooKeeper ({error})"
        else:
            whose = ": no coordinator is elected"
            if elected is not None:
                whose = f" from coordinator {elected.broker_id} (epoch {elected.epoch})"
            elif not reported:
                on_progress(f"no coordinator is elected; {request_id} stays queued until one is")
                reported = True
        if left_s <= 0:
            stays = f"{request_id} stays queued (withdraw it: kafka-coord coordinator withdraw {request_id})"
            raise Timeout(f"no response within {timeout_s:g} s{whose}; {stays}")
        changed.wait(min(_LOOK_AGAIN_S, left_s))


def await_successor(store: Store, successor: int, timeout_s: float) -> str:
    """Waits for an election after the coordinator resigned in favour of ``successor``. Returns a message. Raises
    :class:`Timeout` if a different instance is elected, or if no instance is elected within ``timeout_s`` seconds.
    """
    named = read_successor(store)
    if named is None or named.broker_id != successor:
        raise Timeout("the coordinator resigned, but its release is too old to name a successor")
    deadline = store.clock.monotonic() + timeout_s
    while (elected := read_coordinator(store)) is None or elected.epoch <= named.epoch:
        if store.clock.monotonic() >= deadline:
            raise Timeout(
                f"the coordinator of epoch {named.epoch} resigned, but no instance was elected within {timeout_s:g} s"
            )
        time.sleep(_ELECTED_S)
    if elected.broker_id != successor:
        raise Timeout(
            f"broker {elected.broker_id} was elected instead (epoch {elected.epoch}): the instance beside broker"
            f" {successor} did not become a candidate within {HOLD_BACK_S:g} s; see that instance's log"
        )
    return f"broker {successor} is the coordinator (epoch {elected.epoch})"


def _read(store: Store, path: str, changed: threading.Event) -> Request | None:
    try:
        node = store.get(path, lambda _: changed.set())
    except StoreUnavailable:
        return None  # try again until the deadline
    except NoNode:
        raise Timeout(f"{path} disappeared; someone withdrew the request, or its response expired") from None
    try:
        return _request(path, node)
    except MalformedValue:
        return None


def withdraw(store: Store, request_id: str) -> bool:
    """Removes a request, answered or not. Returns whether it existed."""
    try:
        store.delete(layout.request(request_id))
    except NoNode:
        return False
    return True


def read_requests(store: Store) -> tuple[tuple[QueuedRequest, ...], tuple[Unreadable, ...]]:
    """Returns the queued requests, answered or not, in order of creation, and the requests that cannot be decoded."""
    reading = Reading(store)
    (listing,) = reading.many([GetChildren(layout.REQUESTS)])
    names = reading.names(layout.REQUESTS, listing)
    queued = []
    for name, node in zip(names, reading.many(GetData(layout.request(name)) for name in names), strict=True):
        path = layout.request(name)
        request = reading.decode(path, node, _request)
        if request is not None and isinstance(node, Node):
            queued.append(QueuedRequest.of(request, node.stat.ctime_ms))
    return tuple(queued), tuple(reading.unreadable)


def _request(where: str, node: Node) -> Request:
    return Request.from_bytes(node.data, where)


EVERYWHERE = ""
"""The name that stands for all groups."""

_POLL_S = 0.25


def pause(store: Store, group: str, *, by: str, reason: str) -> None:
    """Forbids rebalances of ``group``, or of all groups (:data:`EVERYWHERE`). Replaces an existing pause. Raises
    :class:`NotFound` if there is no such group.
    """
    require_group(store, group)
    value = Pause(by=by, reason=reason, since_ms=round(store.clock.time() * 1000))
    path = layout.paused(group) if group else layout.PAUSED
    before = _replaced(_read_pause(store, path))
    store.ensure_path(path)
    store.set(path, value.to_bytes())
    action = "pause" if group else "pause --all"
    submit(store, Request(RequestType.LOOK, group, by=by, reason=reason, action=action, change=before))


def resume(store: Store, group: str, *, by: str, reason: str = "") -> None:
    """Allows rebalances again. Raises :class:`RequestRefused` if nothing is paused, and :class:`NotFound`."""
    require_group(store, group)
    path = layout.paused(group) if group else layout.PAUSED
    before = _replaced(_read_pause(store, path))
    try:
        store.delete(path)
    except NoNode:
        if group and store.exists(layout.PAUSED) is not None:
            raise RequestRefused(
                f"group {group!r} is paused only because all groups are paused; to resume all: "
                "kafka-coord groups resume --all"
            ) from None
        what = f"group {group!r} is" if group else "the groups are"
        raise RequestRefused(f"{what} not paused; nothing was changed") from None
    action = "resume" if group else "resume --all"
    submit(store, Request(RequestType.LOOK, group, by=by, reason=reason, action=action, change=before))


def pause_of(store: Store, group: str, *, everywhere: bool = True) -> Pause | None:
    """Returns the pause that applies to ``group``: its own, or else (with ``everywhere``) the one for all groups. An
    unreadable pause has empty fields."""
    own = _read_pause(store, layout.paused(group)) if group != EVERYWHERE else None
    return own or (_read_pause(store, layout.PAUSED) if everywhere else None)


def _read_pause(store: Store, path: str) -> Pause | None:
    try:
        return Pause.from_bytes(store.get(path).data, path)
    except NoNode:
        return None
    except MalformedValue:
        return Pause()


def _replaced(pause: Pause | None) -> str:
    """Describes the pause that a change replaces, for the history."""
    if pause is None:
        return ""
    who = f"by {pause.by}" if pause.by else "(the operator's name cannot be read)"
    return f"was paused {who}" + (f" ({pause.reason})" if pause.reason else "")


def change_settings(
    store: Store,
    group: str,
    change: Callable[[GroupSettings], GroupSettings],
    *,
    by: str,
    reason: str = "",
    create: bool = False,
) -> GroupSettings:
    """Applies ``change`` to the group's settings without losing concurrent changes, and returns the new settings. With
    ``create``, creates a missing group. Raises :class:`NotFound`.
    """
    path = layout.group(group)
    created = create and store.exists(path) is None
    if create:
        store.ensure_path(path)
    while True:
        try:
            node = store.get(path)
        except NoNode:
            raise NotFound(f"no group {group!r}; to create it before any consumer registers, use --create") from None
        try:
            current = GroupSettings.from_bytes(node.data, path) if node.data else GroupSettings()
        except MalformedValue:
            current = GroupSettings()  # the write below repairs the znode
        changed = change(current)
        try:
            store.set(path, changed.to_bytes(), node.stat.version)
        except BadVersion:
            continue
        recorded = "; ".join(filter(None, ["created" if created else "", settings_change(current, changed)]))
        submit(store, Request(RequestType.LOOK, group, by=by, reason=reason, action="settings", change=recorded))
        return changed


SETTINGS_LIMITS = {
    "rebalance_timeout_ms": (1, 86_400_000),
    "offsets_retention_ms": (0, 10 * 365 * 86_400_000),
    "lag_warning_ms": (0, 365 * 86_400_000),
}
"""The least and the largest value of each numeric setting."""


def require_assignor(name: str) -> None:
    """Raises :class:`SettingsError` if the assignor is not installed here."""
    from kafka_coord.coordinator.assignors import load_assignors

    known = sorted(load_assignors())
    if name not in known:
        raise SettingsError(f"assignor {name!r} is not installed; use one of {', '.join(known)}")


def settings_change(before: GroupSettings, after: GroupSettings) -> str:
    """Describes a change of settings for the history and for a dry run, or returns ``""`` if there is none."""
    old, new = (structs.asdict(one) | {"assignor": one.assignor or DEFAULT_ASSIGNOR} for one in (before, after))
    changed = {name: value for name, value in new.items() if value != old[name]}
    return ", ".join(f"{name}: {_shown(name, old[name])} → {_shown(name, value)}" for name, value in changed.items())


def _shown(name: str, value: object) -> object:
    return ("as the site" if name == "lag_warning_ms" else "as the brokers") if value is None else value


def record(store: Store, kind: str, group: str, *, by: str, reason: str, change: str = "") -> None:
    """Asks the coordinator to record an action on a client-assigned group in the cluster's history."""
    submit(store, recording(kind, group, by=by, reason=reason, change=change))


@contextmanager
def held_by_nobody(store: Store, group: str, partitions: PartitionSet, acting: Acting) -> Iterator[None]:
    """Keeps the partitions free of owners while the block runs. Pauses the group, evicts the owners, and waits until no
    one holds the partitions. At the end, even after an error, resumes the group if it was not paused before. The owners
    rejoin immediately, but receive no partitions until the group is resumed.

    Raises :class:`Timeout`, :class:`RequestRefused` and :class:`NotFound`.
    """
    paused_here = store.exists(layout.paused(group)) is None
    if paused_here:
        pause(store, group, by=acting.by, reason=acting.reason)
    try:
        for consumer in _holders(_look(store, group), partitions):
            acting.on_progress(f"evicting {consumer}; it will register again immediately")
            request = Request(RequestType.EVICT, group, consumer, acting.reason, acting.by)
            ask(store, request, acting.timeout_s, acting.on_progress)
        what = f"release {partitions}"
        wait_until(store, group, lambda seen, _: not _holders(seen, partitions), what=what, timeout_s=acting.timeout_s)
        yield
    finally:
        if paused_here:
            with suppress(RequestRefused):  # someone else has resumed it
                resume(store, group, by=acting.by, reason=acting.reason)
        else:
            acting.on_progress(f"group {group} stays paused, because it was paused before")


def _look(store: Store, group: str) -> GroupSnapshot:
    snapshot = read_groups(store, [group], read_cluster(store)).get(group)
    if snapshot is None:
        raise NotFound(f"group {group!r} was removed while the command was running")
    return snapshot


def _holders(snapshot: GroupSnapshot, partitions: PartitionSet) -> list[str]:
    return sorted(consumer for consumer, ledger in snapshot.observation.ledgers.items() if ledger.held & partitions)


def wait_until(
    store: Store,
    group: str,
    done: Callable[[GroupSnapshot, GroupState], bool],
    *,
    what: str,
    timeout_s: float,
) -> None:
    """Polls the group until ``done`` returns true. Raises :class:`NotFound` and, after ``timeout_s`` seconds,
    :class:`Timeout` with the outstanding commands. ``what`` completes the error's sentence "waiting for the
    group to …".
    """
    deadline = store.clock.monotonic() + timeout_s
    while True:
        snapshot = _look(store, group)
        state = group_state(snapshot.observation)
        if done(snapshot, state):
            return
        if store.clock.monotonic() >= deadline:
            waiting = ", ".join(f"{c} ({len(ids)})" for c, ids in snapshot.pending.items()) or "none"
            raise Timeout(
                f"timed out after {timeout_s:g} s waiting for group {group!r} to {what}; its state is {state};"
                f" unacknowledged commands: {waiting}"
            )
        time.sleep(_POLL_S)


def settled(_: GroupSnapshot, state: GroupState) -> bool:
    """Returns whether the group has settled, for :func:`wait_until`."""
    return state in AT_REST


def quiet(snapshot: GroupSnapshot, _: GroupState) -> bool:
    """Returns whether the members have acknowledged every command, for :func:`wait_until`. In a paused group, nothing
    moves once they have."""
    return not any(consumer in snapshot.observation.members for consumer in snapshot.pending)


def require_group(store: Store, group: str) -> None:
    """Raises :class:`NotFound` if there is no such group. Accepts :data:`EVERYWHERE`."""
    if group and store.exists(layout.group(group)) is None:
        raise NotFound(f"no group {group!r}")
