"""Decides how long members may stay silent, also across terms (ADR 39). Does no I/O.

A member's session runs only while a term serves its group, on an :class:`AttentiveClock`. Some seconds after it has
begun, each term writes down which of the earlier terms' members it has heard (:class:`Heard`). The next term gives
these members a full session, and the others what remains of theirs (:class:`Sessions`). Otherwise, terms that alternate
between two instances would keep a dead member for ever.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka_coord.errors import MalformedValue
from kafka_coord.model import json_fields as fields

LONGEST_STEP_S = 0.5
"""The longest normal time from the start of one step to the start of the next, in seconds. If a step takes longer, the
instance counts as stalled."""
NOTED_AFTER_S = 10.0
"""How long after it has begun a term writes down which members it has heard, in seconds. By then, nearly all living
clients have found their new coordinator: they send a heartbeat every 3 s, unless configured otherwise."""
LEAST_S = 30.0
"""A term waits for each member at least this many seconds, or for the member's session if that is shorter."""

Key = tuple[str, str]
"""A group and a member id. The id of a socket member is its incarnation."""


class AttentiveClock:
    """A clock that runs only while the instance serves its members. It stands still while the instance is stalled for
    any reason (such as a frozen process, or a slow ZooKeeper in the middle of a step), and while the instance may have
    been deposed.

    At such times, members' input may go unread, so their session timeouts must not run.
    """

    def __init__(self, now: float) -> None:
        self._stood_still_s = 0.0
        self._began_at = now
        self.leads = True

    def step_began(self, now: float, *, leads: bool) -> None:
        longest = LONGEST_STEP_S if self.leads else 0.0
        self._stood_still_s += max(0.0, now - self._began_at - longest)
        self._began_at, self.leads = now, leads

    def at(self, now: float) -> float:
        """Converts the monotonic time ``now`` to this clock."""
        return now - self._stood_still_s

    def monotonic(self, at: float) -> float:
        """Returns the monotonic time at which this clock will show ``at``, unless the instance stalls before then.
        Never earlier, not even by a rounding error: a timer set for it finds ``at`` reached."""
        shown = at + self._stood_still_s
        while self.at(shown) < at:
            shown = math.nextafter(shown, math.inf)
        return shown


@dataclass(frozen=True, slots=True)
class Heard:
    """What ``term`` has noted about the members of earlier terms: ``None`` for each member that it has heard, and for
    each of the others what was left of its session, in ms."""

    term: int
    left_ms: Mapping[Key, int | None]

    def to_json(self) -> dict[str, Any]:
        groups: dict[str, dict[str, int | None]] = {}
        for (group, member_id), left_ms in self.left_ms.items():
            groups.setdefault(group, {})[member_id] = left_ms
        return {"version": fields.VERSION, "term": self.term, "left_ms": groups}

    @classmethod
    def from_json(cls, value: fields.Json, where: str) -> Heard:
        """Raises :class:`MalformedValue`."""
        left_ms: dict[Key, int | None] = {}
        groups = fields.mapping(value, "left_ms", where)
        for group in groups:
            for member_id, left in fields.mapping(groups, group, where).items():
                if left is not None and (not isinstance(left, int) or isinstance(left, bool)):
                    raise MalformedValue(where, f"{fields.shown(left)} is not a number of milliseconds", "left_ms")
                left_ms[group, member_id] = left
        return cls(fields.number(value, "term", where), left_ms)


@dataclass(slots=True)
class Sessions:
    """What remains of the members' sessions, according to a log. Pass in all of its records in order.

    Only the time counts for which a term has certainly served: from its first record to its last. So an outage, or a
    quiet end of a term, takes nothing from a member.
    """

    _term: int = -1
    _at_ms: int = 0
    _noted_by: int = -1
    _left_ms: dict[Key, int | None] = field(default_factory=dict)
    _since_note_ms: int = 0
    """For how long terms have served since the newest note was written."""
    _in_later_terms_ms: int = 0
    """For how long the terms after the one that wrote the newest note have served."""

    def passed(self, term: int, at_ms: int) -> None:
        """Notes that ``term`` wrote something at ``at_ms`` on its instance's wall clock."""
        if term == self._term:
            served_ms = max(0, at_ms - self._at_ms)
            self._since_note_ms += served_ms
            self._in_later_terms_ms += served_ms if term != self._noted_by else 0
        self._term, self._at_ms = term, at_ms

    def noted(self, heard: Heard) -> None:
        """Takes over a note. One term may write several, each about other members."""
        if heard.term != self._noted_by:
            self._left_ms = {}
        self._left_ms.update(heard.left_ms)
        self._noted_by, self._since_note_ms, self._in_later_terms_ms = heard.term, 0, 0

    def left_s(self, group: str, member_id: str, session_timeout_s: float, least_s: float = LEAST_S) -> float:
        """Returns for how many seconds the next term waits for a member. One that no note names has joined since."""
        if self._noted_by < 0:
            return session_timeout_s
        noted_ms = self._left_ms.get((group, member_id))
        left_s = session_timeout_s - self._in_later_terms_ms / 1000
        if noted_ms is not None:
            left_s = (noted_ms - self._since_note_ms) / 1000
        return min(session_timeout_s, max(left_s, least_s))
