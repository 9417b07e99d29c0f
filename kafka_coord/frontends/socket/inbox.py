"""Queues the input from all connections for the gateway's thread, in lanes by priority. Does no I/O.

A member must answer pings within its session timeout, so its input must not get stuck behind that of a client that
floods the port. Members and other clients therefore have separate lanes. Input from one connection stays in order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, TypeVar

LARGE_BYTES = 16 << 10
"""Frames larger than this, in bytes, wait in a lane of their own."""


class Lane(Enum):
    """The lanes, in the order they are served in each turn."""

    MEMBERS = auto()
    MEMBERS_LARGE = auto()
    STRANGERS = auto()
    STRANGERS_LARGE = auto()


@dataclass(frozen=True, slots=True)
class Allowance:
    """A lane's limits. One turn takes up to ``items`` items and about ``bytes`` bytes. Reading pauses while
    ``waiting_items`` items or ``waiting_bytes`` bytes are queued."""

    items: int
    bytes: int
    waiting_items: int
    waiting_bytes: int


ALLOWANCES = {
    Lane.MEMBERS: Allowance(2_000, 2 << 20, 50_000, 32 << 20),
    Lane.MEMBERS_LARGE: Allowance(16, 256 << 10, 64, 8 << 20),
    Lane.STRANGERS: Allowance(200, 256 << 10, 10_000, 4 << 20),
    Lane.STRANGERS_LARGE: Allowance(16, 256 << 10, 64, 8 << 20),
}

Arrival = TypeVar("Arrival")


@dataclass(slots=True, eq=False)
class Sender:
    """The lane that queues one connection's input, and how many of that connection's items are waiting in it."""

    lane: Lane = Lane.STRANGERS
    waiting: int = 0


@dataclass(slots=True)
class _Waiting(Generic[Arrival]):
    items: deque[tuple[Sender, Arrival, int]] = field(default_factory=deque)
    bytes: int = 0


class Inbox(Generic[Arrival]):
    """The queued input, in lanes. One thread calls :meth:`put`, and one thread calls :meth:`take`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lanes: dict[Lane, _Waiting[Arrival]] = {lane: _Waiting() for lane in Lane}

    def put(self, sender: Sender, arrival: Arrival, size: int, *, member: bool) -> None:
        """Queues input of ``size`` bytes. ``member`` is true if a registered consumer sent it."""
        with self._lock:
            sender.lane = self._lane_of(sender, size, member=member)
            sender.waiting += 1
            waiting = self._lanes[sender.lane]
            waiting.items.append((sender, arrival, size))
            waiting.bytes += size

    def has_room(self, sender: Sender, size: int, *, member: bool) -> bool:
        """Returns whether a frame of ``size`` bytes may be read from the connection now."""
        lane = self._lane_of(sender, size, member=member)
        waiting, allowed = self._lanes[lane], ALLOWANCES[lane]
        return len(waiting.items) < allowed.waiting_items and waiting.bytes < allowed.waiting_bytes

    def _lane_of(self, sender: Sender, size: int, *, member: bool) -> Lane:
        if sender.waiting:
            return sender.lane  # keeps the connection's input in order
        if size > LARGE_BYTES:
            return Lane.MEMBERS_LARGE if member else Lane.STRANGERS_LARGE
        return Lane.MEMBERS if member else Lane.STRANGERS

    def __bool__(self) -> bool:
        return any(waiting.items for waiting in self._lanes.values())

    def take(self) -> Iterator[Arrival]:
        """Removes and yields one turn's share of each lane, which is at least one item unless the lane is empty."""
        for lane, waiting in self._lanes.items():
            items, size = 0, 0
            while items < ALLOWANCES[lane].items and size < ALLOWANCES[lane].bytes:
                with self._lock:
                    if not waiting.items:
                        break
                    sender, arrival, bytes_of_it = waiting.items.popleft()
                    waiting.bytes -= bytes_of_it
                    sender.waiting -= 1
                items, size = items + 1, size + bytes_of_it
                yield arrival
