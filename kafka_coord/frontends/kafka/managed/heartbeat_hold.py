"""Decides how long to hold each KIP-848 heartbeat, and when the next one is due. Does no I/O.

librdkafka gives up on a heartbeat that takes longer than the last interval it received. It sends the next heartbeat one
interval after the previous one, however early the response arrives. A hold therefore ends a little before the interval
does, and the next interval is about as long as the hold: if it were longer, the member would learn nothing during the
rest of the interval. A commit, which arrives on the same connection, ends a hold early. Most clients commit at regular
intervals, so holds are timed to end when the next commit is due.

franz-go waits for the response to a heartbeat as long as for any other, so it gets a short interval and long holds.

The Java client is just as patient, but two of its threads spin while a heartbeat takes longer than the last interval
it received (KAFKA-21031). A changed interval restarts its heartbeat timer, but an unchanged one does not. The client
therefore normally gets the same interval every time, and its heartbeats are held until the interval is nearly over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from kafka_coord.classic_groups.heartbeat_hold import (
    HoldAllowance,
    longest_hold_s,
    spins_beyond_interval,
    waits_beyond_interval,
)

NOT_HELD_S = 1.0
"""The interval for clients whose heartbeats are not held, and for members that are stopping partitions. Such members do
not wait for the interval, but send a heartbeat as soon as they have stopped the partitions."""
WITH_NEWS_S = 3.0
"""The interval in a response with an assignment. The client acknowledges the assignment without waiting that long."""
JOIN_S = 0.9
"""How long a join is held if the client's last interval is unknown, in seconds."""
LONGEST_INTERVAL_S = 1.7
SHORTEST_INTERVAL_S = 0.15
LONGEST_SILENCE_S = 0.35
_BETWEEN_POLLS_S = 0.05
_MARGIN_S = 0.07
"""A hold ends this many seconds before the client would give up."""
_GROWTH = 0.6
"""How much longer than a hold the next interval may be, as a fraction of the hold."""
OFTEN_S = 3.0
"""A client counts as committing often if the time between its commits is shorter than this, in seconds. Its intervals
are at least :data:`SLOWEST_S`. Otherwise, it would send a heartbeat after every commit, since each one ends a hold."""
SLOWEST_S = 1.0
_LONGEST_BETWEEN_S = 2.0
_BEHIND_COMMIT_S = 0.05
_NEAR_COMMIT_S = 0.2
_ABOUT = 0.1
_STILL_COMMITS = 2.5
"""After this many periods without a commit, a client no longer counts as one that commits often."""

STEADY_S = 5.0
"""Kafka's heartbeat interval, and the interval of the Java client's automatic commits."""
_BEFORE_AGAIN_S = 0.1
"""How long the Java client waits after a response (``retry.backoff.ms``)."""
_SOON_S = 0.3
_SPINS_S = 0.4
"""How much longer than the interval a hold may last, in seconds, so that a commit can end it. The next heartbeat then
follows that commit."""
_ASKED_EVERY_S = 60.0
_ASKED_AT_ONCE = 3


@dataclass(slots=True)
class Pace:
    """The pace of one client's heartbeats. Times are in monotonic seconds. ``told_s`` is the last interval that the
    client received. The current heartbeat arrived at ``began``, and the last commit at ``committed_at``. ``period_s``
    is the usual time between two commits."""

    joins_for_all: ClassVar[bool] = False
    """Whether a join is held until its member has its entire share of the group's target."""
    longest_s: float
    polls_long: bool
    told_s: float = 0.0
    began: float = 0.0
    committed_at: float = -math.inf
    period_s: float = math.inf

    @classmethod
    def of(cls, software: str) -> Pace:
        """Returns the pace for a client. ``software`` is its name and version from ApiVersions, or empty if its
        heartbeats must not be held."""
        kind = SteadyPace if spins_beyond_interval(software) else cls
        return kind(longest_hold_s(software), waits_beyond_interval(software))

    def arrived(self, now: float) -> None:
        self.began = now

    def joins(self) -> None:
        """Records that the current heartbeat is a join."""

    def acknowledged(self, now: float) -> None:
        """Records that the current heartbeat acknowledges a command."""

    def limit_s(self) -> float:
        """Returns how long the current heartbeat may be held, in seconds. If the result is not positive, the heartbeat
        must be answered immediately."""
        return self.longest_s if self.polls_long else min(self.longest_s, self.told_s - _MARGIN_S)

    def join_limit_s(self) -> float:
        """Returns how long a join may be held, in seconds."""
        if self.polls_long:
            return self.longest_s
        return max(0.0, self.told_s - _MARGIN_S) if self.told_s else JOIN_S

    def committed(self, now: float) -> None:
        since_s, before_s = now - self.committed_at, self.period_s
        is_regular = before_s / 2 < since_s < before_s * 2
        self.committed_at, self.period_s = now, (since_s + before_s) / 2 if is_regular else since_s

    def given_up(self, now: float) -> None:
        """Handles that the client has stopped waiting for the response to a held heartbeat. If its interval was not
        nearly over, its read timeout must be shorter than the holds, so its heartbeats are no longer held."""
        if self.polls_long or now - self.began < self.told_s - _SOON_S:
            self.longest_s, self.polls_long, self.told_s = 0.0, False, 0.0

    def asks_again(self, _now: float) -> bool:
        """Returns whether to answer with COORDINATOR_LOAD_IN_PROGRESS when another request ends a hold. The error makes
        the client resend the heartbeat soon."""
        return False

    def after_news(self) -> float:
        if self.polls_long:
            return self._tell(_BETWEEN_POLLS_S)
        return self._tell(WITH_NEWS_S if self.longest_s else NOT_HELD_S)

    def while_stopping(self) -> float:
        return self._tell(NOT_HELD_S)

    def after_interruption(self, now: float) -> float:
        """Returns the interval after another request has ended a hold. The next heartbeat is then due as soon as the
        client's pace allows."""
        held_s, often = now - self.began, self._commits_often(now)
        if self.polls_long:
            return self._tell(max(_BETWEEN_POLLS_S, SLOWEST_S - held_s if often else 0.0))
        return self._tell(self._in_step(now, now) if often else max(SHORTEST_INTERVAL_S, held_s))

    def after_limit(self, now: float) -> float:
        """Returns the interval after a hold that was not interrupted, or after a heartbeat that was not held."""
        if not self.longest_s:
            return self._tell(NOT_HELD_S)
        if self.polls_long:
            return self._tell(_BETWEEN_POLLS_S)
        if self._commits_often(now):
            return self._tell(self._in_step(now, self.committed_at))
        held_s = now - self.began
        more_s = min(LONGEST_SILENCE_S, max(SHORTEST_INTERVAL_S, _GROWTH * held_s))
        interval_s = min(LONGEST_INTERVAL_S, held_s + more_s)
        left_s = self.committed_at + self.period_s - now  # until the next commit is due
        if self.period_s < math.inf:
            if left_s > SHORTEST_INTERVAL_S:
                interval_s = left_s / math.ceil(left_s / interval_s)
            elif left_s > -SHORTEST_INTERVAL_S:  # the commit may arrive at any moment
                interval_s = held_s + SHORTEST_INTERVAL_S
        return self._tell(max(SHORTEST_INTERVAL_S, interval_s))

    def _commits_often(self, now: float) -> bool:
        is_often = self.period_s < OFTEN_S
        return is_often and now - self.committed_at < _STILL_COMMITS * max(self.period_s, SLOWEST_S)

    def _in_step(self, now: float, commit_at: float) -> float:
        """Returns an interval of at least :data:`SLOWEST_S` that makes the next heartbeat follow a commit. If commits
        are far apart, several holds share the time between two of them. Commits are due at ``commit_at`` and every
        period after that."""
        period_s = self.period_s
        if period_s < SLOWEST_S:
            at = (
                commit_at
                + period_s * math.ceil((self.began + SLOWEST_S - commit_at) / period_s - _ABOUT)
                + _BEHIND_COMMIT_S
            )
        else:
            at = self.began + period_s / math.ceil(period_s / _LONGEST_BETWEEN_S - _ABOUT)
            commit_s = commit_at + period_s * round((at - commit_at) / period_s)
            if abs(at - commit_s) < _NEAR_COMMIT_S:
                at = commit_s + _BEHIND_COMMIT_S
        return max(SLOWEST_S, now - self.began, at - self.began)

    def _tell(self, interval_s: float) -> float:
        self.told_s = interval_s
        return interval_s


@dataclass(slots=True)
class SteadyPace(Pace):
    """The pace of the Java client (see the top of the module). The client restarts its commit timer whenever it has
    carried out an assignment. So if it commits automatically, each heartbeat follows a commit and is held until the
    next commit. If another request, such as an OffsetFetch, ends a hold too early, an error makes the client resend the
    heartbeat."""

    joins_for_all: ClassVar[bool] = True  # otherwise, each part of the share would cost the application two polls
    told_s: float = STEADY_S  # the interval that the client received in an earlier term
    _allowance: HoldAllowance = field(default_factory=HoldAllowance)
    """Limits how often the client is made to resend a heartbeat, because it logs a line each time."""

    def joins(self) -> None:
        self.told_s = SLOWEST_S

    def join_limit_s(self) -> float:
        return JOIN_S  # the client spins, because it has no interval yet

    def limit_s(self) -> float:
        commit_s = self.committed_at + self.period_s - self.began
        is_due = self.told_s == STEADY_S and abs(commit_s - STEADY_S) < _SOON_S
        return min(self.longest_s, self.told_s + (_SPINS_S if is_due else -_BEFORE_AGAIN_S))

    def acknowledged(self, now: float) -> None:
        self.committed_at, self.period_s = now, STEADY_S

    def asks_again(self, now: float) -> bool:
        if self.told_s < STEADY_S or self._is_soon(now) or self._allowance.is_used_up(now):
            return False
        self._allowance.use(now, _ASKED_EVERY_S, _ASKED_AT_ONCE)
        return True

    def after_news(self) -> float:
        self._allowance = HoldAllowance()
        return self.while_stopping()

    def while_stopping(self) -> float:
        """Returns the usual interval. The client does not wait for it before it acknowledges a stop."""
        return self._tell(STEADY_S)

    def after_interruption(self, now: float) -> float:
        return self._tell(self.told_s if self._is_soon(now) else SLOWEST_S)

    def after_limit(self, _now: float) -> float:
        return self._tell(self.told_s if self.longest_s else NOT_HELD_S)

    def _is_soon(self, now: float) -> bool:
        return self.told_s - (now - self.began) <= _SOON_S
