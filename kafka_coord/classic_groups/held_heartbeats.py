"""Decides how long a heartbeat is held while there is no news for its client, and how it is answered (ADR 20, ADR 33).

librdkafka sends a heartbeat at each tick of its clock, every 3 s, but never while another heartbeat is in flight. After
a hold, it is therefore silent until the next tick. To keep this silence short, a hold ends just before a tick. If a
commit ends the hold early, the answer is an error, so that the client soon sends the same heartbeat again.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from kafka_coord.classic_groups.errors import Error

LIBRDKAFKA = ("librdkafka", "confluent-kafka")
_JAVA, _FRANZ_GO = "apache-kafka-java", "kgo"
_LONGEST_S = {
    **dict.fromkeys(LIBRDKAFKA, 15.0),
    _JAVA: 6.0,
    _FRANZ_GO: 6.0,
}
"""Seconds that a client can wait, by prefix of the software name. librdkafka always waits for its session timeout.
franz-go (kgo) closes a connection after 10 s without an answer, the Java client after 30 s. 6 s is longer than their
intervals between heartbeats and between commits, so the next heartbeat follows immediately. Other clients may close
their connection sooner (kafka-go: after 5 s), or send no other request while they wait."""

_WITHIN_INTERVAL = ("kafka-python", "aiokafka")
"""These clients send no heartbeat before the last one is answered. While kafka-python's takes longer than the interval
between heartbeats, its poll does not wait (``ConsumerCoordinator.time_to_next_poll``), and uses up all CPU time."""
_AT_ONCE_S = 0.05
_RESTARTING = _JAVA
"""This client restarts its clock with each heartbeat that it sends, even if it repeats a heartbeat on request."""
_TICK_S = 3.0
"""The default ``heartbeat.interval.ms``, in seconds."""
_EACH_S = 2.5
"""Seconds between the Java client's heartbeats. It sends two in the 5 s between its automatic commits."""
_TICKS = 3
"""A heartbeat is answered without an error within this many ticks, because the client waits twice as long before each
repetition (0.1 s at first)."""
_MARGIN_S = 0.25
"""Seconds that requests and answers take on a busy machine. An answer after the tick leaves the client silent for 3
s."""
_SOON_S = 0.5
"""If the next tick is at most this many seconds away, no error is needed in the answer."""
_AGAIN_S = 1.5
"""Seconds within which a client repeats a heartbeat. librdkafka before 2.0 never repeats one."""

_COMMITS_S = (4.95, 5.3)
"""The shortest and longest time between two automatic commits (``auto.commit.interval.ms``). A client sends one when
its application polls, but never earlier."""
COMMITS_ALONE = (_JAVA, *_WITHIN_INTERVAL)
"""Nothing in these clients waits for the answer to an automatic commit but the next one."""
_PROOFS = 3
_NOT_AUTOMATIC_S = 600.0


def longest_hold_s(software: str) -> float:
    """Returns how many seconds a client with this software name (from ApiVersions) can wait. Returns 0, which means no
    hold, if the name is unknown or missing."""
    return next((longest_s for name, longest_s in _LONGEST_S.items() if software.startswith(name)), 0.0)


def waits_beyond_interval(software: str) -> bool:
    """Whether a KIP-848 client can wait for a heartbeat's answer longer than its heartbeat interval."""
    return software.startswith((_JAVA, _FRANZ_GO))


def spins_beyond_interval(software: str) -> bool:
    """Whether a KIP-848 client spins, which costs CPU time, while it waits longer than its heartbeat interval."""
    return software.startswith(_JAVA)


def hold_limit_s(longest_s: float, session_timeout_s: float, silent_s: float) -> float:
    """Returns the longest hold in seconds, at most a third of the session timeout. If it is not positive, answer
    immediately. ``silent_s`` is how long the member had sent nothing before this heartbeat. The member may be silent
    for as long again after the hold, so the hold and this silence together stay within two thirds of the timeout."""
    return min(longest_s, session_timeout_s / 3, session_timeout_s * 2 / 3 - silent_s)


@dataclass(slots=True)
class Allowance:
    """Limits how often a client is asked to repeat a heartbeat. One use is allowed every ``each_s`` seconds, and up to
    ``most`` uses can be saved up. Times are monotonic seconds."""

    _until: float = -math.inf

    def use(self, now: float, each_s: float, most: int) -> None:
        self._until = max(self._until, now - most * each_s) + each_s

    def is_used_up(self, now: float) -> bool:
        return now < self._until


@dataclass(slots=True)
class Beats:
    """Tracks when the client of a classic member sends heartbeats. Times are monotonic seconds. ``quiet_since`` is when
    the client last sent a request or got the answer to a held request. Until ``again_until``, the client may repeat a
    heartbeat."""

    quiet_since: float = -math.inf
    again_until: float = -math.inf
    _ticked: float = -math.inf
    _interval_s: float = _TICK_S
    """The time between heartbeats of clients that must be answered before the next one. 0: it is being measured."""
    _sent_at: float = -math.inf
    _answered_at: float = -math.inf
    """When the last heartbeat was sent, and when it is answered if there is no news."""
    _fine_at: float = -math.inf
    """When the client joined or was last answered without an error, as far as this term knows. It leaves the group a
    session timeout later."""
    _session_timeout_s: float = 0.0
    _restarts: bool = False
    _asked_at: float = -math.inf
    """When the client was last asked, with an error, to repeat its heartbeat."""
    _allowance: Allowance = field(default_factory=Allowance)
    """Each heartbeat uses it."""

    def arrived(self, now: float, software: str, session_timeout_s: float) -> float:
        """Handles a heartbeat of a client with this software name. Returns how many seconds it may be held. If the
        number is not positive, the heartbeat must be answered immediately."""
        longest_s = longest_hold_s(software)
        if software.startswith(_WITHIN_INTERVAL):
            longest_s = self._measured_s(now) - _MARGIN_S
        limit_s = hold_limit_s(longest_s, session_timeout_s, now - self.quiet_since)
        self._session_timeout_s = session_timeout_s
        if self._answered_at > self._asked_at:
            self._fine_at = min(now, self._answered_at)
        self.quiet_since, self._sent_at, self._answered_at = now, now, now + max(0.0, limit_s)
        restarts = self._restarts = software.startswith(_RESTARTING)
        if limit_s <= 0 or not (restarts or software.startswith(LIBRDKAFKA)):
            return limit_s
        if restarts or now >= self.again_until:
            self._ticked = now
        self.again_until = -math.inf
        each_s = _EACH_S if restarts else _TICK_S
        self._allowance.use(now, each_s, _TICKS)
        if restarts:
            return limit_s  # this client sends its next heartbeat during the hold
        since_s = now - self._ticked + _MARGIN_S
        next_tick = since_s // _TICK_S + 1
        last_tick = min((since_s + limit_s) // _TICK_S, max(next_tick, _TICKS))
        return last_tick * _TICK_S - since_s if last_tick >= next_tick else limit_s

    def _measured_s(self, now: float) -> float:
        """Returns the client's time between heartbeats. If this one came right after the answer to the last one, which
        was held for too long, returns 0, and the time to the next one counts."""
        if not self._interval_s:
            self._interval_s = min(_TICK_S, now - self._sent_at)
        elif 0 <= now - self._answered_at < _AT_ONCE_S:
            self._interval_s = 0.0
        return self._interval_s

    def joined(self, now: float) -> None:
        """Handles a new join of the client. Starts to count its heartbeats again."""
        self._allowance, self._answered_at = Allowance(), now

    def interrupted(self, now: float) -> Error:
        """Returns the answer to a held heartbeat whose client has sent another request before there was any news."""
        self.quiet_since = self._answered_at = now
        since_s = now - self._ticked
        to_tick_s = _TICK_S - (since_s if self._restarts else since_s % _TICK_S) if self._ticked > -math.inf else 0.0
        # A client that restarts its clock waits longer before each repetition, so it is not asked twice in a row.
        is_asked_enough = self._allowance.is_used_up(now) or (self._restarts and self._asked_at > self._fine_at)
        # The repeated heartbeat may be held for a third of the session timeout.
        is_near_timeout = now + _AGAIN_S > self._fine_at + self._session_timeout_s / 3
        if is_asked_enough or is_near_timeout or to_tick_s <= _SOON_S:
            return Error.NONE
        self._asked_at, self.again_until = now, now + _AGAIN_S
        return Error.COORDINATOR_LOAD_IN_PROGRESS


@dataclass(slots=True)
class AutoCommits:
    """Recognizes automatic commits on one connection. Times are monotonic seconds.

    The answer to an automatic commit of some clients may wait behind a held heartbeat until the client's next heartbeat
    or the end of the hold, because it delays nothing. The time between automatic commits does not depend on when they
    are answered, which :meth:`arrived` checks after each wait. A commit may wait if it repeats the one before, as at
    rest, or if the check has succeeded several times. An application that commits by itself rarely does either every
    5 s.
    """

    _at: float = -math.inf
    _request: int = 0
    _has_waited: bool = False
    _proofs: int = 0
    _not_before: float = -math.inf

    def may_wait(self, now: float, software: str, request: int) -> bool:
        """Whether the answer to this OffsetCommit may wait. ``request`` is a hash of the OffsetCommit without its
        correlation id."""
        is_due = _COMMITS_S[0] <= now - self._at <= _COMMITS_S[1] and now >= self._not_before
        is_known = self._proofs >= _PROOFS or request == self._request
        return is_due and is_known and software.startswith(COMMITS_ALONE)

    def arrived(self, now: float, request: int, *, waits: bool) -> None:
        """Handles a commit. ``waits`` tells whether its answer waits."""
        if self._has_waited:
            is_automatic = now - self._at <= _COMMITS_S[1]
            self._proofs = self._proofs + 1 if is_automatic else 0
            if not is_automatic:
                self._not_before = now + _NOT_AUTOMATIC_S
        self._at, self._request, self._has_waited = now, request, waits


class LateBeats:
    """Remembers until when heartbeats may arrive that members sent before they left."""

    def __init__(self) -> None:
        self._until: dict[Hashable, float] = {}

    def left(self, who: Hashable, until: float, now: float) -> None:
        self._until = {one: late for one, late in self._until.items() if late > now}
        if until > now:
            self._until[who] = until

    def may_come(self, who: Hashable, now: float) -> bool:
        return now < self._until.get(who, -math.inf)
