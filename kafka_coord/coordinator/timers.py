"""Durations in one group: when each thing was first seen.

Nothing here matters for safety. A new coordinator restarts all timers, so each election lengthens a grace period or a
timeout by at most its own length.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class FirstSeen(Generic[Key]):
    """Remembers when each thing was first seen, until a pass no longer sees it."""

    __slots__ = ("_first_seen",)

    def __init__(self) -> None:
        self._first_seen: dict[Key, float] = {}

    def update(self, present: Iterable[Key], now: float) -> None:
        """Updates the timers: things that are new in ``present`` start at ``now`` (monotonic seconds), absent ones are
        dropped.
        """
        self._first_seen = {key: self._first_seen.get(key, now) for key in present}

    def since(self, key: Key) -> float:
        """When ``key`` was first seen. Raises ``KeyError`` if it is not present."""
        return self._first_seen[key]

    def before(self, moment: float) -> list[Key]:
        """The keys first seen at ``moment`` or earlier."""
        return [key for key, since in self._first_seen.items() if since <= moment]


class GroupTimers:
    """Timers of one group. ``next_due`` is the earliest moment at which one of them changes an answer."""

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

    def passed(self, since: float, duration_ms: int, now: float) -> bool:
        """Whether ``duration_ms`` have passed since then; if not, notes when they will have passed."""
        due = since + duration_ms / 1000
        if now >= due:
            return True
        self.next_due = due if self.next_due is None else min(self.next_due, due)
        return False
