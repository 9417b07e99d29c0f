"""Decides how long to hold a classic member's heartbeat while there is no news, and how to answer it (ADR 11).

librdkafka sends a heartbeat on every tick of a 3 s timer, but never while another heartbeat is in flight, so after a
hold it stays silent until the next tick. To keep that silence short, a hold ends just before a tick. If a commit ends
the hold early, the response is an error, which makes the client resend the heartbeat soon.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from kafka_coord.classic_groups.errors import Error
from kafka_coord.wire.frames import HEADER_BYTES

LIBRDKAFKA = ("librdkafka", "confluent-kafka")
_JAVA, _FRANZ_GO = "apache-kafka-java", "kgo"
_LONGEST_S = {
    **dict.fromkeys(LIBRDKAFKA, 15.0),
    _JAVA: 6.0,
    _FRANZ_GO: 6.0,
}
"""How many seconds a client can wait, by prefix of its software name. librdkafka always waits for a full session
timeout. Without a response, franz-go (kgo) closes a connection after 10 s, and the Java client after 30 s. Their
heartbeat and commit intervals are shorter than 6 s, so their next heartbeat is due as soon as a hold ends. Other
clients may close their connection sooner (kafka-go does so after 5 s), or might not send other requests while
waiting."""

_WITHIN_INTERVAL = ("kafka-python", "aiokafka")
"""Clients that do not send a heartbeat before the previous one has been answered. If a response takes longer than the
heartbeat interval, kafka-python's poll stops waiting (``ConsumerCoordinator.time_to_next_poll``) and spins."""
_AT_ONCE_S = 0.05
_RESTARTING = _JAVA
"""The client that restarts its heartbeat timer whenever it sends a heartbeat, even a resent one."""
_TICK_S = 3.0
"""The default ``heartbeat.interval.ms``, in seconds."""
_EACH_S = 2.5
"""Seconds between heartbeats from the Java client, which sends two in the 5 s between its automatic commits."""
_TICKS = 3
"""The maximum number of ticks before a client gets a response without an error. With each consecutive error, the client
waits twice as long before it resends a heartbeat, starting at 0.1 s."""
_MARGIN_S = 0.25
"""How long a request and its response take on a busy machine, in seconds. If the response arrives after the tick, the
client stays silent for 3 s."""
_SOON_S = 0.5
"""If the next tick is at most this many seconds away, the response need not be an error."""
_AGAIN_S = 1.5
"""The longest that a client takes to resend a heartbeat, in seconds. librdkafka before 2.0 never resends one."""

_COMMITS_S = (4.95, 5.3)
"""The shortest and the longest time between two automatic commits (``auto.commit.interval.ms``), in seconds. Once the
interval has passed, the client commits at the application's next poll."""
_COMMITS_ALONE = (_JAVA, *_WITHIN_INTERVAL)
"""The clients whose automatic commits, while unanswered, hold up nothing but the next automatic commit."""
_PROOFS = 3
_CORRELATION_AT = 4
_NOT_AUTOMATIC_S = 600.0


def longest_hold_s(software: str) -> float:
    """Returns how many seconds a client with the given software name (from ApiVersions) can wait for a response. For an
    unknown or missing name, returns 0, so that the heartbeat is not held."""
    return next((longest_s for name, longest_s in _LONGEST_S.items() if software.startswith(name)), 0.0)


def waits_beyond_interval(software: str) -> bool:
    """Returns whether a KIP-848 client can wait longer than its heartbeat interval for the response to a heartbeat."""
    return software.startswith((_JAVA, _FRANZ_GO))


def spins_beyond_interval(software: str) -> bool:
    """Returns whether a KIP-848 client spins, wasting CPU time, once it waits longer than its heartbeat interval."""
    return software.startswith(_JAVA)


def hold_limit_s(longest_s: float, session_timeout_s: float, silent_s: float) -> float:
    """Returns how many seconds a heartbeat may be held: at most a third of the session timeout. If the result is not
    positive, the heartbeat must be answered immediately. ``silent_s`` is how long the member was silent before the
    heartbeat. It may be silent for as long again after the hold, so the hold and ``silent_s`` together must not exceed
    two thirds of the timeout."""
    return min(longest_s, session_timeout_s / 3, session_timeout_s * 2 / 3 - silent_s)


@dataclass(slots=True)
class HoldAllowance:
    """Limits how often a client is made to resend a heartbeat. One use is allowed every ``each_s`` seconds, and up to
    ``most`` uses can be saved up. Times are in monotonic seconds."""

    _until: float = -math.inf

    def use(self, now: float, each_s: float, most: int) -> None:
        self._until = max(self._until, now - most * each_s) + each_s

    def is_used_up(self, now: float) -> bool:
        return now < self._until


@dataclass(slots=True)
class Beats:
    """Tracks when the client of a classic member sends heartbeats. Times are in monotonic seconds. ``quiet_since`` is
    when the client last sent a request or got the response to a held request. Until ``again_until``, the client may
    resend a heartbeat."""

    quiet_since: float = -math.inf
    again_until: float = -math.inf
    _ticked: float = -math.inf
    _interval_s: float = _TICK_S
    """The time between heartbeats, for clients that never send one before the last has been answered. 0 while being
    measured."""
    _sent_at: float = -math.inf
    _answered_at: float = -math.inf
    """When the last heartbeat, which arrived at ``_sent_at``, was answered, or will be if there is no news."""
    _fine_at: float = -math.inf
    """When the client joined or last got a response without an error, as far as this term knows. One session timeout
    later, the client leaves the group."""
    _session_timeout_s: float = 0.0
    _restarts: bool = False
    _asked_at: float = -math.inf
    """When an error last made the client resend its heartbeat."""
    _is_impatient: bool = False
    """Whether the client has stopped waiting for the response to a held heartbeat."""
    _allowance: HoldAllowance = field(default_factory=HoldAllowance)
    """Limits resends. Every heartbeat counts as one use, even if it is not a resend."""

    def arrived(self, now: float, software: str, session_timeout_s: float) -> float:
        """Handles a heartbeat from a client with the given software name. Returns how many seconds the heartbeat may be
        held. If the number is not positive, the heartbeat must be answered immediately."""
        longest_s = longest_hold_s(software)
        if software.startswith(_WITHIN_INTERVAL):
            longest_s = self._measured_s(now) - _MARGIN_S
        if self._is_impatient:
            longest_s = 0.0
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
            return limit_s  # such a client sends its next heartbeat during the hold
        since_s = now - self._ticked + _MARGIN_S
        next_tick = since_s // _TICK_S + 1
        last_tick = min((since_s + limit_s) // _TICK_S, max(next_tick, _TICKS))
        return last_tick * _TICK_S - since_s if last_tick >= next_tick else limit_s

    def _measured_s(self, now: float) -> float:
        """Returns the client's time between heartbeats. If the current heartbeat arrived right after the response to
        the previous one, the previous hold was too long; in that case, returns 0 and measures the time until the next
        heartbeat."""
        if not self._interval_s:
            self._interval_s = min(_TICK_S, now - self._sent_at)
        elif 0 <= now - self._answered_at < _AT_ONCE_S:
            self._interval_s = 0.0
        return self._interval_s

    def joined(self, now: float) -> None:
        """Handles a new join from the client and resets its allowance."""
        self._allowance, self._answered_at = HoldAllowance(), now

    def given_up(self, now: float) -> None:
        """Handles that the client has stopped waiting for the response to a held heartbeat. Its read timeout must be
        shorter than the holds, so its heartbeats are no longer held. This does not apply to a response that is late:
        then this instance was suspended."""
        self._is_impatient = self._is_impatient or now < self._answered_at

    def interrupted(self, now: float) -> Error:
        """Returns the response to a held heartbeat whose client has sent another request before there was anything to
        report."""
        self.quiet_since = self._answered_at = now
        since_s = now - self._ticked
        to_tick_s = _TICK_S - (since_s if self._restarts else since_s % _TICK_S) if self._ticked > -math.inf else 0.0
        # A client that restarts its timer waits longer before each resend, so it must not be made to resend twice in a
        # row.
        is_asked_enough = self._allowance.is_used_up(now) or (self._restarts and self._asked_at > self._fine_at)
        # The resent heartbeat may be held for a third of the session timeout.
        is_near_timeout = now + _AGAIN_S > self._fine_at + self._session_timeout_s / 3
        if is_asked_enough or is_near_timeout or to_tick_s <= _SOON_S:
            return Error.NONE
        self._asked_at, self.again_until = now, now + _AGAIN_S
        return Error.COORDINATOR_LOAD_IN_PROGRESS


@dataclass(slots=True)
class AutoCommits:
    """Recognizes automatic commits on one connection. Times are in monotonic seconds.

    In some clients, nothing waits for the response to an automatic commit, so the response may wait behind a held
    heartbeat until the client sends its next heartbeat or the hold ends. Automatic commits keep to their interval
    however late they are answered, and :meth:`arrived` checks this after each wait. A commit may wait if it equals the
    previous one (as it does when no records arrive), or once the check has succeeded several times. An application that
    commits on its own is unlikely to meet either condition at 5 s intervals.
    """

    _at: float = -math.inf
    _request: int = 0
    _has_waited: bool = False
    _proofs: int = 0
    _not_before: float = -math.inf

    def may_wait(self, now: float, software: str, frame: bytes) -> bool:
        """Returns whether the response to the OffsetCommit in ``frame`` may wait."""
        is_due = _COMMITS_S[0] <= now - self._at <= _COMMITS_S[1] and now >= self._not_before
        if not is_due or not software.startswith(_COMMITS_ALONE):
            return False
        return self._proofs >= _PROOFS or _without_correlation(frame) == self._request

    def arrived(self, now: float, software: str, frame: bytes, *, waits: bool) -> None:
        """Handles a commit. ``waits`` says whether its response will wait."""
        if not software.startswith(_COMMITS_ALONE):
            return
        if self._has_waited:
            is_automatic = now - self._at <= _COMMITS_S[1]
            self._proofs = self._proofs + 1 if is_automatic else 0
            if not is_automatic:
                self._not_before = now + _NOT_AUTOMATIC_S
        self._at, self._request, self._has_waited = now, _without_correlation(frame), waits


def _without_correlation(frame: bytes) -> int:
    """Returns a hash of a request without its correlation id."""
    return hash((frame[:_CORRELATION_AT], frame[HEADER_BYTES:]))


class LateBeats:
    """Remembers which members have left, and until when heartbeats sent before they left may still arrive."""

    def __init__(self) -> None:
        self._until: dict[Hashable, float] = {}

    def left(self, who: Hashable, until: float, now: float) -> None:
        self._until = {one: late for one, late in self._until.items() if late > now}
        if until > now:
            self._until[who] = until

    def may_come(self, who: Hashable, now: float) -> bool:
        return now < self._until.get(who, -math.inf)
