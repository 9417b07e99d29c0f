"""Computes a session's lease: how long the session is guaranteed to last. This is pure arithmetic.

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
"""

from __future__ import annotations

from collections import deque

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
