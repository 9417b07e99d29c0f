"""Remembers when each condition in a group was first seen, to measure grace periods and timeouts.

Safety does not depend on this. A new coordinator restarts all timers, so an election can at most double a grace period
or a timeout.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class FirstSeen(Generic[Key]):
    """Remembers when each key was first seen, until a pass no longer sees it."""

    __slots__ = ("_first_seen",)

    def __init__(self) -> None:
        self._first_seen: dict[Key, float] = {}

    def update(self, present: Iterable[Key], now: float) -> None:
        """Starts a timer at ``now`` (monotonic seconds) for each new key, and drops the timers of absent keys."""
        self._first_seen = {key: self._first_seen.get(key, now) for key in present}

    def since(self, key: Key) -> float:
        """Returns when ``key`` was first seen. Raises ``KeyError`` if it is not present."""
        return self._first_seen[key]

    def before(self, moment: float) -> list[Key]:
        """Returns the keys first seen at ``moment`` or earlier."""
        return [key for key, since in self._first_seen.items() if since <= moment]


class GroupTimers:
    """The timers of one group. ``next_due`` is when the first of them ends."""

    __slots__ = ("commands", "gone", "next_due", "retiring")

    def __init__(self) -> None:
        self.commands = FirstSeen[tuple[str, int, str]]()
        """Outstanding commands, by (consumer, incarnation, command name)."""
        self.gone = FirstSeen[str]()
        """Consumers with a place and no registration."""
        self.retiring = FirstSeen[str]()
        """Consumers that have left only a channel."""
        self.next_due: float | None = None

    def begin(self) -> None:
        self.next_due = None

    def passed(self, since: float, duration_ms: float, now: float) -> bool:
        """Whether ``duration_ms`` have passed since ``since``. If not, updates :attr:`next_due`."""
        due = since + duration_ms / 1000
        if now >= due:
            return True
        self.next_due = due if self.next_due is None else min(self.next_due, due)
        return False
