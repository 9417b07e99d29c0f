"""How long things have lasted, per group: the only memory the handler keeps between two looks.

Nothing here is needed for safety. A new coordinator starts all of it anew, which only makes a grace or a timeout last
longer, by at most its own length.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable


class Since:
    """Remembers when each thing was first seen, as long as it is seen at every look."""

    __slots__ = ("_first_seen",)

    def __init__(self) -> None:
        self._first_seen: dict[Hashable, float] = {}

    def look(self, present: Iterable[Hashable], now: float) -> None:
        """What is present now: newcomers start at ``now`` (monotonic seconds), what is gone is forgotten."""
        self._first_seen = {key: self._first_seen.get(key, now) for key in present}

    def since(self, key: Hashable) -> float:
        """When ``key`` was first seen; raises ``KeyError`` where it is not present."""
        return self._first_seen[key]


class GroupTimers:
    """Timers of one group. ``next_due`` collects the earliest moment at which one of them would change an answer."""

    __slots__ = ("commands", "gone", "next_due", "retiring")

    def __init__(self) -> None:
        self.commands = Since()
        """Outstanding commands, by (consumer, command name)."""
        self.gone = Since()
        """Consumers with a place and no registration."""
        self.retiring = Since()
        """Consumers of which only the channel is left."""
        self.next_due: float | None = None

    def begin(self) -> None:
        self.next_due = None

    def passed(self, since: float, duration_ms: int, now: float) -> bool:
        """Whether ``duration_ms`` have passed since; if not, the moment they will have is noted."""
        due = since + duration_ms / 1000
        if now >= due:
            return True
        self.next_due = due if self.next_due is None else min(self.next_due, due)
        return False
