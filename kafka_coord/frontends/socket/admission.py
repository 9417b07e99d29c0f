"""Limits the rate of registrations. A client over the limit gets a place: a time reserved for its retry."""

from __future__ import annotations

from kafka_coord.frontends.socket.connection import Connection

_BURST_S = 1.0
"""How many seconds' worth of unused capacity is saved up. All of it can then be used at once."""


class Admission:
    """Admits ``per_s`` registrations a second. All times are in monotonic seconds.

    Clients get places in the order of their requests, and the places are evenly spaced in time. Retrying early does not
    help: a client is admitted if it retries at its place, however many others have sent requests since.
    """

    def __init__(self, per_s: int, now: float) -> None:
        self._every_s = 1 / per_s
        self._next = now - _BURST_S

    def too_early_s(self, connection: Connection, longest_s: float, now: float) -> float:
        """Like :meth:`wait_s`, but does not reserve a place, and returns 0 if the client could get a place now. It is
        cheap enough to be called before the request is decoded."""
        if connection.place is not None:
            return max(0.0, connection.place - now)
        return longest_s if self._next - now > longest_s else 0.0

    def wait_s(self, connection: Connection, longest_s: float, now: float) -> float:
        """Returns 0 if the client may proceed. Otherwise, returns how long it must wait before it retries on this
        connection: at most ``longest_s``. If the next free place is later than that, does not reserve it."""
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
