"""How long a heartbeat may be held while there is no news for its client, and how it is then answered (ADR 20, ADR 33).

librdkafka sends a heartbeat every 3 s by its own clock, but at most one at a time. So after a hold it is silent until
the next tick, for up to 3 s. A hold therefore ends just before a tick. If a commit ends a hold early, the answer is an
error after which the client soon sends the same heartbeat again.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from kafka_coord.classic_groups.errors import Error

_TICKING = ("librdkafka", "confluent-kafka")
_JAVA, _FRANZ_GO = "apache-kafka-java", "kgo"
_LONGEST_S = {
    **dict.fromkeys(_TICKING, 15.0),
    _JAVA: 6.0,
    _FRANZ_GO: 6.0,
}
"""Seconds that a client can wait, by prefix of the software name. librdkafka always waits for its session timeout.
franz-go (kgo) closes a connection after 10 s without an answer, the Java client after 30 s. 6 s is longer than their
intervals between heartbeats and between commits, so the next heartbeat follows immediately. Other clients may close
their connection sooner (kafka-go: after 5 s), or send nothing else in the meantime."""

_RESTARTING = _JAVA
"""This client restarts its clock with each heartbeat that it sends, including one that it was asked to repeat."""
_TICK_S = 3.0
"""The default ``heartbeat.interval.ms``, in seconds."""
_EACH_S = 2.5
"""Seconds between the Java client's heartbeats: two in the 5 s between its automatic commits."""
_TICKS = 3
"""A heartbeat is answered without an error within this many ticks. The client waits twice as long before each
repetition (0.1 s at first), and leaves the group after a session timeout without such an answer."""
_MARGIN_S = 0.25
"""Seconds that requests and answers take on a busy machine. An answer after the tick leaves the client silent for 3
s."""
_SOON_S = 0.5
"""If the next tick is at most this many seconds away, an answer without an error is as good."""
_AGAIN_S = 1.5
"""Seconds within which a client repeats a heartbeat, if at all (librdkafka before 2.0 does not)."""


def longest_hold_s(software: str) -> float:
    """How long a client with this software name (from ApiVersions) can wait; 0, so no hold, if the name is unknown or
    missing."""
    return next((longest_s for name, longest_s in _LONGEST_S.items() if software.startswith(name)), 0.0)


def waits_beyond_interval(software: str) -> bool:
    """Whether a KIP-848 client waits for a heartbeat's answer even beyond the interval it was told."""
    return software.startswith((_JAVA, _FRANZ_GO))


def spins_beyond_interval(software: str) -> bool:
    """Whether a KIP-848 client spins, and so uses CPU time, while it waits beyond the interval it was told."""
    return software.startswith(_JAVA)


def hold_limit_s(longest_s: float, session_timeout_s: float, silent_s: float) -> float:
    """The longest hold, at most a third of the session timeout; answer immediately unless it is positive. ``silent_s``
    is how long the member had sent nothing before this heartbeat. It may be silent for as long again after the hold;
    the hold and the silence together stay within two thirds of the timeout."""
    return min(longest_s, session_timeout_s / 3, session_timeout_s * 2 / 3 - silent_s)


@dataclass(slots=True)
class Allowance:
    """Limits how often a client is asked to repeat a heartbeat: once every ``each_s`` seconds, of which up to ``most``
    may be saved up. Times are monotonic seconds."""

    _until: float = -math.inf

    def use(self, now: float, each_s: float, most: int) -> None:
        self._until = max(self._until, now - most * each_s) + each_s

    def is_used_up(self, now: float) -> bool:
        return now < self._until


@dataclass(slots=True)
class Beats:
    """Tracks when the client of a classic member sends heartbeats. Times are monotonic seconds. ``quiet_since`` is when
    it last sent something or its held request was answered. Until ``again_until``, it may repeat a heartbeat."""

    quiet_since: float = -math.inf
    again_until: float = -math.inf
    _ticked: float = -math.inf
    _restarts: bool = False
    _was_asked: bool = False
    """Whether the last answer asked a client that restarts its clock to repeat a heartbeat; each time it waits
    longer."""
    _allowance: Allowance = field(default_factory=Allowance)
    """Each heartbeat uses it up."""

    def arrived(self, now: float, software: str, session_timeout_s: float) -> float:
        """Handles a heartbeat of a client with this software name. Returns how long it may be held; unless this is
        positive, it must be answered immediately."""
        limit_s = hold_limit_s(longest_hold_s(software), session_timeout_s, now - self.quiet_since)
        self.quiet_since = now
        restarts = self._restarts = software.startswith(_RESTARTING)
        if limit_s <= 0 or not (restarts or software.startswith(_TICKING)):
            return limit_s
        if restarts or now >= self.again_until:
            self._ticked = now
        self.again_until = -math.inf
        each_s = _EACH_S if restarts else _TICK_S
        self._allowance.use(now, each_s, _TICKS)
        if restarts:
            return limit_s  # it sends the next one meanwhile
        since_s = now - self._ticked + _MARGIN_S
        next_tick = since_s // _TICK_S + 1
        last_tick = min((since_s + limit_s) // _TICK_S, max(next_tick, _TICKS))
        return last_tick * _TICK_S - since_s if last_tick >= next_tick else limit_s

    def joined(self) -> None:
        """Handles a new join of the client: the counting of its heartbeats starts over."""
        self._allowance, self._was_asked = Allowance(), False

    def interrupted(self, now: float) -> Error:
        """Returns the answer to a held heartbeat whose client has sent something else while there is no news for it."""
        self.quiet_since = now
        since_s = now - self._ticked
        to_tick_s = _TICK_S - (since_s if self._restarts else since_s % _TICK_S) if self._ticked > -math.inf else 0.0
        if self._allowance.is_used_up(now) or to_tick_s <= _SOON_S or self._was_asked:
            self._was_asked = False
            return Error.NONE
        self._was_asked = self._restarts
        self.again_until = now + _AGAIN_S
        return Error.COORDINATOR_LOAD_IN_PROGRESS


class LateBeats:
    """Remembers until when to expect heartbeats that members sent before they left."""

    def __init__(self) -> None:
        self._until: dict[Hashable, float] = {}

    def left(self, who: Hashable, until: float, now: float) -> None:
        self._until = {one: late for one, late in self._until.items() if late > now}
        if until > now:
            self._until[who] = until

    def may_come(self, who: Hashable, now: float) -> bool:
        return now < self._until.get(who, -math.inf)
