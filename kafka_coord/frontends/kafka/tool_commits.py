"""Decides which commits to client-assigned groups an operator wants to see in the history: those of tools. Does no
I/O."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable

from kafka_coord.classic_groups.metadata import CONSUMER, GroupMetadata

QUIET_S = 600.0
"""A connection that commits more often than this, in seconds, is recorded only once, as a copying program is
(MirrorMaker commits every minute)."""
_MOST = 10_000
"""The maximum number of connections and groups to remember."""


class ToolCommits:
    """Remembers which connections have committed to which groups without being a member."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[int, str], float] = OrderedDict()

    def is_news(
        self, connection: int, group: GroupMetadata, offsets: Iterable[tuple[int | None, int]], now: float
    ) -> bool:
        """Returns whether the history should record a commit that no member sent. ``offsets`` holds each partition's
        offset before (``None`` if it had none) and after, and ``now`` is a monotonic time in seconds.

        A commit that moves an offset back is always recorded. Any other commit is recorded if the group has had
        consumers as members, because only a tool interferes there: consumers that assign partitions to themselves
        commit all the time, to groups that never have members.
        """
        key = connection, group.group_id
        last = self._last.pop(key, -math.inf)
        self._last[key] = now
        if len(self._last) > _MOST:
            self._last.popitem(last=False)
        changes = [(old, new) for old, new in offsets if old != new]
        if any(old is not None and new < old for old, new in changes):
            return True
        had_members = group.generation_id > 0 and group.protocol_type == CONSUMER
        return bool(changes) and had_members and now - last > QUIET_S
