"""The pace of a member's heartbeats: how long each is held, and after which interval the next one is to come. Pure.

librdkafka gives a heartbeat up after the interval that it was last told. It sends the next one that interval after it
sent the one before, however early the answer came. So a hold ends a little before, and the interval told is close to
the time held: whatever is longer is silence, in which the member learns nothing. A commit ends a hold early, because it
comes on the same connection. Commits mostly come at regular times, and holds are cut to end when the next one is due.

The Java client and franz-go wait as long for any request. They are told a short interval and are held for long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kafka_coord.classic_groups.held_heartbeats import longest_hold_s, waits_beyond_interval

NOT_HELD_S = 1.0
"""The interval for clients whose heartbeats are not held, and for members that are stopping partitions: these send the
next one by themselves when they have stopped."""
WITH_NEWS_S = 3.0
"""The interval in an answer with an assignment: the next heartbeat, which acknowledges it, comes by itself."""
JOIN_S = 0.9
"""How long a join is held. What the client waits for is not known: it may have been told an interval before."""
LONGEST_INTERVAL_S = 1.7
SHORTEST_INTERVAL_S = 0.15
LONGEST_SILENCE_S = 0.35
_BETWEEN_POLLS_S = 0.05
_MARGIN_S = 0.07
"""A hold ends so long before the client gives up."""
_GROWTH = 0.6
"""By so much an interval may be longer than the hold before it."""
_RARE_S = 0.5
"""More frequent commits have no rhythm that holds could keep."""


@dataclass(slots=True)
class Pace:
    """Times are monotonic seconds. ``told_s`` is the interval that the client was last told."""

    longest_s: float
    polls_long: bool
    told_s: float = 0.0
    began: float = 0.0
    committed_at: float = -math.inf
    period_s: float = math.inf

    @classmethod
    def of(cls, software: str) -> Pace:
        """``software`` is the client's name in ApiVersions. Empty: it is not held."""
        return cls(longest_hold_s(software), waits_beyond_interval(software))

    def arrived(self, now: float) -> None:
        self.began = now

    def limit_s(self) -> float:
        """How long the heartbeat that has arrived may be held. Not positive: not at all."""
        return self.longest_s if self.polls_long else min(self.longest_s, self.told_s - _MARGIN_S)

    def join_limit_s(self) -> float:
        """How long a heartbeat may wait that joins."""
        if self.polls_long:
            return self.longest_s
        return max(0.0, self.told_s - _MARGIN_S) if self.told_s else JOIN_S

    def committed(self, now: float) -> None:
        self.committed_at, self.period_s = now, now - self.committed_at

    # --- which interval an answer tells ------------------------------------------------------------------------------

    def after_news(self) -> float:
        if self.polls_long:
            return self._tell(_BETWEEN_POLLS_S)
        return self._tell(WITH_NEWS_S if self.longest_s else NOT_HELD_S)

    def while_stopping(self) -> float:
        return self._tell(NOT_HELD_S)

    def after_interruption(self, now: float) -> float:
        """The client has sent something else: the next heartbeat comes right behind that."""
        return self._tell(_BETWEEN_POLLS_S if self.polls_long else max(SHORTEST_INTERVAL_S, now - self.began))

    def after_limit(self, now: float) -> float:
        """The hold was not interrupted, or there was none."""
        if not self.longest_s:
            return self._tell(NOT_HELD_S)
        if self.polls_long:
            return self._tell(_BETWEEN_POLLS_S)
        held_s = now - self.began
        more_s = min(LONGEST_SILENCE_S, max(SHORTEST_INTERVAL_S, _GROWTH * held_s))
        interval_s = min(LONGEST_INTERVAL_S, held_s + more_s)
        left_s = self.committed_at + self.period_s - now  # until the next commit is due
        if _RARE_S <= self.period_s < math.inf:
            if left_s > SHORTEST_INTERVAL_S:
                interval_s = left_s / math.ceil(left_s / interval_s)
            elif left_s > -SHORTEST_INTERVAL_S:  # it comes at any moment
                interval_s = held_s + SHORTEST_INTERVAL_S
        return self._tell(max(SHORTEST_INTERVAL_S, interval_s))

    def _tell(self, interval_s: float) -> float:
        self.told_s = interval_s
        return interval_s
