"""Sends requests to the coordinator: creates the request's znode, waits for the response, and removes the znode."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from kafka_coord.errors import MalformedValue, NoNode, RequestRefused, StoreUnavailable, Timeout
from kafka_coord.model import Request, Unreadable
from kafka_coord.model import json_fields as fields
from kafka_coord.monitor.cluster import read_coordinator
from kafka_coord.monitor.reading import Reading
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetChildren, GetData, Node, Store
from kafka_coord.zk.successor import HOLD_BACK_S, read_successor

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


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A request in the queue. ``since_ms`` is the time when it was created, by ZooKeeper's clock."""

    request: Request
    since_ms: int


def submit(store: Store, request: Request) -> str:
    """Writes the request and returns its id. Raises :class:`StoreUnavailable` if it is unknown whether the write took
    effect.
    """
    store.ensure_path(layout.REQUESTS)
    stamped = replace(request, timestamp_ms=round(store.clock.time() * 1000))
    try:
        path = store.create(layout.REQUEST_PREFIX, fields.dump(stamped.to_json()), sequence=True)
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
            queued.append(QueuedRequest(request, node.stat.ctime_ms))
    return tuple(queued), tuple(reading.unreadable)


def _request(where: str, node: Node) -> Request:
    return Request.from_json(fields.load(node.data, where), where)
