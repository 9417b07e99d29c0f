"""How many may register at a time: whoever comes beyond that is told when to come again, and has a place then."""

from __future__ import annotations

from kafka_coord.frontends.socket.connection import Connection

_BURST_S = 1.0
"""What nobody used of the last second may be used at once."""


class Admission:
    """``per_s`` registrations a second. All times are monotonic seconds.

    Places are given in the order of asking, each so much later than the one before; to ask again sooner than told does
    not help, and whoever comes at its time is let in, however many have come since.
    """

    def __init__(self, per_s: int, now: float) -> None:
        self._every_s = 1 / per_s
        self._next = now - _BURST_S

    def too_early_s(self, connection: Connection, longest_s: float, now: float) -> float:
        """As :meth:`wait_s`, and keeps no place: how long whoever asks before its place, or has no hope of one, still
        has to wait; 0 for anybody else. It costs nothing to find out, so it is asked before anything is read."""
        if connection.place is not None:
            return max(0.0, connection.place - now)
        return longest_s if self._next - now > longest_s else 0.0

    def wait_s(self, connection: Connection, longest_s: float, now: float) -> float:
        """0 to go on at once; otherwise after how long to ask again on that connection, at most ``longest_s``. Where
        the next place is farther away than that, none is kept."""
        if connection.place is not None:
            left_s = connection.place - now
            if left_s <= 0:
                connection.place = None
            return max(0.0, left_s)
        place = max(self._next, now - _BURST_S)
        wait_s = max(0.0, place - now)
        if wait_s > longest_s:
            return longest_s
        self._next = place + self._every_s
        if wait_s > 0:
            connection.place = place
        return wait_s
