"""Contains every use of kazoo's private attributes, each with a check that it exists and a fallback if it does not.

The module is written for kazoo 2.10 and 2.11. If a later kazoo moves an attribute, the store still works; each function
says what is lost in that case.
"""

from __future__ import annotations

import logging
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.protocol.serialization import Watch as WatchWire
from kazoo.protocol.states import KeeperState, WatchedEvent

log = logging.getLogger(__name__)

Watch = Callable[[WatchedEvent], None]


class WireRequest(Protocol):
    """A request that kazoo does not support: its type number in ZooKeeper, its bytes, and a decoder of the response."""

    @property
    def type(self) -> int: ...

    def serialize(self) -> bytes: ...

    def deserialize(self, buffer: bytes, offset: int) -> Any: ...


def on_connected(client: KazooClient, monotonic: Callable[[], float], tell: Callable[[float, int, int], None]) -> bool:
    """Calls ``tell(sent_at, session_id, negotiated_timeout_ms)`` each time the server accepts a connect request, before
    kazoo reports it.

    kazoo keeps the negotiated timeout only in local variables. Returns False if the timeout cannot be read. The caller
    then assumes the shortest timeout that a server grants, which is equally safe, but makes the lease shorter.
    """
    lost = "cannot read the negotiated session timeout; assuming the shortest that a server grants (which is safe)"
    connection, invoke = _of_connection(client, "_invoke", lost)
    if invoke is None:
        return False

    def listening(timeout: float, request: Any, xid: int | None = None) -> Any:
        sent_at = monotonic()
        answer = invoke(timeout, request, xid)
        if type(request).__name__ == "Connect" and isinstance(answer, tuple):
            accepted = answer[0]
            if accepted.time_out > 0:
                tell(sent_at, accepted.session_id, accepted.time_out)
        return answer

    connection._invoke = listening
    return True


def set_credentials(client: KazooClient, digest: str | None, sasl: Mapping[str, str] | None) -> None:
    """Sets the credentials that kazoo sends on its next connection. If a later kazoo hides those for SASL, the first
    ones stay in use."""
    client.auth_data = {("digest", digest)} if digest is not None else set()
    connection = getattr(client, "_connection", None)
    if sasl is not None and connection is not None and hasattr(connection, "sasl_options"):
        connection.sasl_options = dict(sasl)


def _of_connection(client: KazooClient, name: str, lost: str) -> tuple[Any, Any]:
    """Returns kazoo's connection and the connection's method ``name``. If that method is missing, returns ``None``
    for it and logs which feature is lost."""
    connection = getattr(client, "_connection", None)
    method = getattr(connection, name, None)
    if method is None:
        log.warning("%s reason='this version of kazoo has no ConnectionHandler.%s'", lost, name)
    return connection, method


def on_watch_events(client: KazooClient, tell: Callable[[int, str], None]) -> bool:
    """Calls ``tell(type, path)`` for every watch event from the server, on kazoo's connection thread, after kazoo has
    called its own watchers.

    kazoo calls a watcher once, and only for its own path, because it does not support persistent or recursive watches.
    Returns False if this version of kazoo hides its events. The caller then uses one-shot watches.
    """
    lost = "cannot use persistent watches; falling back to one-shot watches"
    connection, read = _of_connection(client, "_read_watch_event", lost)
    if read is None:
        return False

    def listening(buffer: bytes, offset: int) -> Any:
        answer = read(buffer, offset)
        event, _ = WatchWire.deserialize(buffer, offset)
        tell(event.type, event.path)
        return answer

    connection._read_watch_event = listening
    return True


def call(client: KazooClient, request: WireRequest) -> Any:
    """Sends a request that kazoo does not support and returns kazoo's async result. Returns ``None`` if this version of
    kazoo cannot send it. In that case, reads and watches are sent one by one, and multis cannot be sent."""
    send = getattr(client, "_call", None)
    if send is None:
        return None
    result = client.handler.async_result()
    send(request, result)
    return result


def remember_watches(
    client: KazooClient, data: Iterable[tuple[str, Watch]], children: Iterable[tuple[str, Watch]]
) -> None:
    """Makes kazoo call the given watches when the server reports a change to a path's data or children. Call it only on
    kazoo's connection thread, because kazoo itself changes its tables only there."""
    for found, watches in ((client._data_watchers, data), (client._child_watchers, children)):
        for path, watch in watches:
            found[path].add(watch)


def can_remember_watches(client: KazooClient) -> bool:
    """Returns whether this version of kazoo stores its watches where :func:`remember_watches` puts them. If not,
    watches are set one by one."""
    return all(isinstance(getattr(client, name, None), defaultdict) for name in ("_data_watchers", "_child_watchers"))


def break_connection(client: KazooClient) -> None:
    """Makes kazoo drop its connection and look for another server, without ending the session. kazoo detects a dead
    connection by an unanswered ping, but it sends pings only after it has sent nothing else for a while, so a client
    that keeps sending never detects it. If the private socket is missing, this does nothing."""
    connected = getattr(getattr(client, "_connection", None), "_socket", None)
    if connected is None:
        return
    try:
        connected.shutdown(socket.SHUT_RDWR)
    except (OSError, AttributeError):  # already gone
        return


def gave_up(client: KazooClient) -> bool:
    """Returns whether kazoo's connection thread has ended on its own, because of refused credentials or an unexpected
    error.

    A client that was just started is also in state ``CLOSED`` until its thread has resolved the names of the servers.
    Only the thread distinguishes the two cases. If this version of kazoo hides its thread, a slow client counts as
    ended.
    """
    if client.client_state not in {KeeperState.CLOSED, KeeperState.AUTH_FAILED}:
        return False
    running = getattr(getattr(getattr(client, "_connection", None), "_connection_routine", None), "is_alive", None)
    return running is None or not running()


def looks_for_servers(client: KazooClient) -> bool:
    """Returns whether a started client is still resolving the servers' names and has not tried to reach any server."""
    return client.client_state == KeeperState.CLOSED and not gave_up(client)


def is_read_only(client: KazooClient) -> bool:
    """Returns whether the client is connected read-only, that is, to a server that is cut off from its ensemble and may
    serve stale data. kazoo reports such a client as connected."""
    return bool(client.client_state == KeeperState.CONNECTED_RO)
