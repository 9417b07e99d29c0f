"""A kazoo client's session: its state, id, negotiated timeout, its persistent watches, and its lease, which is how long
the session is guaranteed to last.

The state follows kazoo's reports, which come late: with a frozen server, ``LOST`` arrived 15 s after a session with a
timeout of 4 s could have ended. Base decisions on :meth:`KazooSession.lease_deadline`, and use the state only for
waiting and display.

A client may rely on its session only as long as no server can have ended it. The rule, for a negotiated timeout T:

* The ZooKeeper leader decides on every **connect** (or reconnect) request. If it accepts a request sent at *s*, it
  restarts the session's timeout, so the session lasts at least until s + T.
* Any later request touches the session only at the server that it reaches. Only the leader ends sessions. A follower
  reports touches to the leader when the leader pings it (every half tick). A follower that is cut off from the leader
  continues to answer reads and pings for seconds, while the leader lets the session expire. So an answered *read*
  proves nothing.
* A write or a ``sync`` must go through the leader. If it was sent at *s2* and answered, the follower was still
  connected to the leader at s2, and had reported all touches up to half a tick earlier. So if this client sent a
  request at *s1* <= s2 - lag and got a response, the leader has counted that request, and the session lasts at least
  until s1 + T.

``lag`` is T/4: a session timeout is at least two ticks (``minSessionTimeout``), so half a tick is at most T/4. The
lease also subtracts a margin for clocks that run at different speeds. With a heartbeat every T/4, the lease extends at
least 45 % of T into the future while the server responds.

Persistent watches belong to one connection. They report znodes created or deleted directly below a path. Only kazoo's
connection thread changes entries, apart from :meth:`PersistentWatches.forget`. Kazoo's callback thread calls the
watchers, but the last event, which reports that the connection broke, may arrive on another thread.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from kazoo.client import KazooClient
from kazoo.protocol.connection import CREATED_EVENT, DELETED_EVENT
from kazoo.protocol.states import Callback, KazooState

from kafka_coord.zk import kazoo_private
from kafka_coord.zk.kazoo_private import is_answer
from kafka_coord.zk.store import Clock, SessionListener, SessionState, Watcher, WatchEvent, WatchType

log = logging.getLogger(__name__)

MARGIN_SHARE = 0.05
MARGIN_S = 0.05
LAG_SHARE = 0.25
_GRAIN_SHARE = 1 / 64
"""If two send times are closer together than this fraction of T, only the earlier one is stored, to save memory."""


class SessionLease:
    """Computes a session's lease from its connects and responses. Times are in monotonic seconds. Not thread-safe."""

    def __init__(self) -> None:
        self.session_id = 0
        self.timeout_s = 0.0
        self.leader_heard_at = 0.0
        """The send time of the newest request that the leader is known to have seen. It determines when the next
        heartbeat is due."""
        self.began_at = 0.0
        """The time at which the lease last began, or began again after it had ended."""
        self._connected_at = 0.0
        self._proven_at: float | None = None
        self._sent: deque[float] = deque()

    def connected(self, sent_at: float, session_id: int, timeout_s: float, *, now: float | None = None) -> None:
        """Records that the connect request sent at ``sent_at`` was accepted, with the given session id and timeout, and
        that this became known at ``now`` (default: immediately)."""
        self._note_a_gap(sent_at if now is None else now)
        self.session_id, self.timeout_s = session_id, timeout_s
        self._connected_at = self.leader_heard_at = self._proven_at = sent_at
        self._sent = deque([sent_at])

    def record_answer(self, sent_at: float, *, through_leader: bool, now: float | None = None) -> None:
        """Records that the server answered a request that was sent no earlier than ``sent_at``, and that the response
        arrived at ``now`` (default: immediately)."""
        self._note_a_gap(sent_at if now is None else now)
        if self._proven_at is None or sent_at < self._connected_at:
            return  # the response belongs to an earlier connection
        if through_leader:
            self.leader_heard_at = max(self.leader_heard_at, sent_at)
            counted = sent_at - LAG_SHARE * self.timeout_s
            while self._sent and self._sent[0] <= counted:
                self._proven_at = max(self._proven_at, self._sent.popleft())
        if not self._sent or sent_at >= self._sent[-1] + _GRAIN_SHARE * self.timeout_s:
            self._sent.append(sent_at)

    def _note_a_gap(self, now: float) -> None:
        if self.lease_deadline() <= now:
            self.began_at = now

    def ended(self) -> None:
        """Records that the session, and with it the lease, has ended."""
        self.session_id = 0
        self._proven_at = None
        self._sent.clear()

    def lease_deadline(self) -> float:
        """Returns the time before which the session cannot end, or 0.0 without a session."""
        if self._proven_at is None:
            return 0.0
        return self._proven_at + self.timeout_s - max(MARGIN_S, MARGIN_SHARE * self.timeout_s)


SHORTEST_GRANTED_MS = 4_000
"""Two ticks of a server with default settings. This timeout is assumed if kazoo hides the negotiated timeout."""
_SILENCE_SHARE = 2 / 3
"""The fraction of the session timeout after which the client drops a silent connection, as in the Java client."""
_RESTART_EVERY_S = 5.0


class KazooSession:
    """Implements :class:`kafka_coord.zk.store.Session` and renews the lease with a heartbeat thread."""

    def __init__(self, client: KazooClient, clock: Clock, requested_timeout_ms: int) -> None:
        self._client = client
        self._clock = clock
        self._requested_ms = requested_timeout_ms
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._lease = SessionLease()
        self._state = SessionState.CONNECTING
        self._suspended_since: float | None = None
        self._listeners: list[SessionListener] = []
        self._closing = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="kafka-coord-zk-heartbeat", daemon=True)
        client.add_listener(self._kazoo_says)
        self._sees_connects = kazoo_private.on_connected(client, clock.monotonic, self._accepted, self._is_over)

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def session_id(self) -> int:
        return self._lease.session_id

    @property
    def timeout_ms(self) -> int:
        """The negotiated timeout or, before the first connect, the requested timeout."""
        return round(self._lease.timeout_s * 1000) or self._requested_ms

    @property
    def suspended_since(self) -> float | None:
        """The (monotonic) time at which the connection broke, or ``None`` while it is up."""
        return self._suspended_since

    def lease_deadline(self) -> float:
        """See :mod:`kafka_coord.zk.kazoo_session` for the rule."""
        with self._lock:
            return self._lease.lease_deadline()

    def lease_began(self) -> float:
        """See :class:`kafka_coord.zk.store.Session`."""
        with self._lock:
            return self._lease.began_at

    def wait_connected(self, within_s: float) -> bool:
        """Waits up to ``within_s`` seconds for a connection. Returns False if there is no connection in time, or if the
        session was closed."""
        deadline = self._clock.monotonic() + within_s
        with self._changed:
            while self._state is not SessionState.CONNECTED:
                left = deadline - self._clock.monotonic()
                if left <= 0 or self._closing.is_set():
                    return False
                self._changed.wait(left)
            return True

    def record_answer(self, sent_at: float, *, through_leader: bool) -> None:
        """Records that the server answered a request that was sent at ``sent_at``. ``through_leader`` means that the
        request went through the leader."""
        with self._lock:
            self._lease.record_answer(sent_at, through_leader=through_leader, now=self._clock.monotonic())

    def listen(self, listener: SessionListener) -> Callable[[], None]:
        """See :meth:`kafka_coord.zk.store.Store.on_session`."""
        with self._lock:
            self._listeners.append(listener)

        def forget() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return forget

    def _accepted(self, sent_at: float, session_id: int, timeout_ms: int) -> None:
        """Runs on the connection thread once the server has accepted a connect request, before kazoo reports
        CONNECTED."""
        with self._lock:
            self._lease.connected(sent_at, session_id, timeout_ms / 1000, now=self._clock.monotonic())

    def _is_over(self) -> bool:
        """Returns whether the connection has been down for twice the session timeout."""
        since = self._suspended_since
        return since is not None and self._clock.monotonic() >= since + 2 * self.timeout_ms / 1000

    def _kazoo_says(self, state: str) -> None:
        """Runs on the connection thread. Records the state, wakes waiters, and calls listeners. Never blocks."""
        if state == KazooState.CONNECTED and not kazoo_private.is_read_only(self._client):
            self._become(SessionState.CONNECTED)
        elif state == KazooState.LOST:
            self._become(SessionState.LOST)
        else:  # SUSPENDED, or a read-only server, which may be cut off and cannot write
            self._become(SessionState.SUSPENDED)

    def _become(self, state: SessionState) -> None:
        with self._changed:
            if self._state is state or self._state is SessionState.CLOSED:
                return
            log.debug("session state=%s before=%s id=%#x", state.value, self._state.value, self._lease.session_id)
            self._state = state
            if state is SessionState.SUSPENDED:
                self._suspended_since = self._suspended_since or self._clock.monotonic()
            if state is SessionState.CONNECTED:
                self._suspended_since = None
                if not self._sees_connects:
                    self._assume_connected()
            if state in {SessionState.LOST, SessionState.CLOSED}:
                self._lease.ended()
            listeners = list(self._listeners)
            self._changed.notify_all()
        for listener in listeners:
            try:
                listener(state)
            except Exception:
                log.exception("ignored an error in a session listener state=%s", state.value)

    def _assume_connected(self) -> None:
        """Assumes the shortest timeout, because the connect could not be observed. The lease then begins with the next
        heartbeat."""
        session_id = (self._client.client_id or (0,))[0] or 0
        self._lease.connected(
            self._clock.monotonic() - SHORTEST_GRANTED_MS / 1000,
            session_id,
            min(self._requested_ms, SHORTEST_GRANTED_MS) / 1000,
            now=self._clock.monotonic(),
        )

    # --- heartbeat ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the heartbeat thread. May be called only once."""
        self._heart.start()

    def close(self) -> None:
        """Marks the session closed and releases threads that wait for a connection. The owner stops the client."""
        self._closing.set()
        self._become(SessionState.CLOSED)

    def join(self, within_s: float) -> None:
        """Waits up to ``within_s`` seconds for the heartbeat thread to end."""
        if self._heart.is_alive() and self._heart is not threading.current_thread():
            self._heart.join(within_s)

    def _beat(self) -> None:
        """Sends a ``sync`` whenever nothing else has gone through the leader for a quarter of the timeout."""
        restart_at = 0.0
        while not self._closing.is_set():
            timeout_s = self.timeout_ms / 1000
            now = self._clock.monotonic()
            if kazoo_private.gave_up(self._client) and self._state is SessionState.LOST and now >= restart_at:
                restart_at = now + _RESTART_EVERY_S
                self._restart()
            with self._lock:
                due_in = self._lease.leader_heard_at + LAG_SHARE * timeout_s - now
            if self._state is not SessionState.CONNECTED:
                self._closing.wait(min(timeout_s / 8, 0.5))
            elif due_in > 0:
                self._closing.wait(due_in)
            else:
                self._ask_leader(now, timeout_s)

    def _ask_leader(self, sent_at: float, timeout_s: float) -> None:
        result = self._client.sync_async("/")
        if not result.wait(timeout=_SILENCE_SHARE * timeout_s):
            with self._lock:
                heard_since = self._lease.leader_heard_at >= sent_at
            if not heard_since and self._state is SessionState.CONNECTED:
                log.warning(
                    "dropping the ZooKeeper connection reason='no response for %.1f s'", _SILENCE_SHARE * timeout_s
                )
                kazoo_private.break_connection(self._client)
                result.wait(timeout=timeout_s)
            return
        error = result.exception
        if error is None or is_answer(error):
            self.record_answer(sent_at, through_leader=True)
        else:
            self._closing.wait(0.05)  # kazoo is about to call the state listener

    def _restart(self) -> None:
        """Restarts the client after kazoo's connection thread ended, for example because of refused credentials."""
        log.warning("restarting the ZooKeeper client reason='it gave up in state %s'", self._client.client_state)
        try:
            self._client.start_async()
        except Exception:
            log.exception("could not restart the ZooKeeper client; retrying in %.0f s", _RESTART_EVERY_S)


_UNANSWERED = 3
"""After this many unanswered requests in a row, no more are sent in that session, and only one in each later
session."""

_TYPES = {CREATED_EVENT: WatchType.CREATED, DELETED_EVENT: WatchType.DELETED}


class PersistentWatches:
    """The persistent watches of one client. ``relative`` removes the chroot from a path on the server."""

    def __init__(self, client: KazooClient, relative: Callable[[str], str]) -> None:
        self._client = client
        self._relative = relative
        self._lock = threading.Lock()
        self._followed: dict[str, tuple[Watcher, ...]] = {}
        self._possible = kazoo_private.on_watch_events(client, self._happened)
        self._refused_in = 0
        self._unanswered = 0

    def may_be_asked_for(self, session_id: int) -> bool:
        """Returns whether the server may be asked for persistent watches in the given session: this version of kazoo
        exposes its events, and no server has refused such a request in that session."""
        return self._possible and self._refused_in != session_id

    def accepted(self) -> None:
        """Records that the server accepted the request to watch."""
        self._unanswered = 0

    def refused(self, session_id: int) -> None:
        """Records that the server refused the request to watch."""
        self._refused_in = session_id

    def unanswered(self, session_id: int) -> None:
        """Records that there was no response. A server may drop the connection when it does not support a request."""
        self._unanswered += 1
        if self._unanswered >= _UNANSWERED:
            self._refused_in = session_id

    def remember(self, path: str, watcher: Watcher) -> None:
        """Starts passing events for ``path`` (absolute on the server) to ``watcher``."""
        with self._lock:
            watchers = self._followed.get(path, ())
            if watcher not in watchers:
                self._followed[path] = (*watchers, watcher)

    def forget(self, path: str, watcher: Watcher) -> None:
        """Stops passing events to ``watcher``."""
        with self._lock:
            left = tuple(one for one in self._followed.pop(path, ()) if one != watcher)
            if left:
                self._followed[path] = left

    def session_is(self, state: SessionState) -> None:
        """If the connection has ended, drops all watches, as the server does, and notifies the watchers."""
        if state is SessionState.CONNECTED:
            return
        with self._lock:
            followed, self._followed = self._followed, {}
        for path, watchers in followed.items():
            for watcher in watchers:
                watcher(WatchEvent(WatchType.CONNECTION, self._relative(path)))

    def _happened(self, kind: int, path: str) -> None:
        watch_type = _TYPES.get(kind)
        if watch_type is None or not self._followed:
            return
        for followed in (path, path.rpartition("/")[0] or "/"):
            for watcher in self._followed.get(followed, ()):
                event = WatchEvent(watch_type, self._relative(path))
                self._client.handler.dispatch_callback(Callback("watch", watcher, (event,)))
