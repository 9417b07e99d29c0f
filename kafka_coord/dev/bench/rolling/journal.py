"""What the clients of the benchmark note, and what it means. Does no I/O.

Each line is ``NANOSECONDS WHAT REST``. The time is that of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

_SECOND = 1_000_000_000


class What(StrEnum):
    """The kinds of lines."""

    RECORD = "record"
    """Records of a partition have arrived; the rest is its number."""
    COMMITTED = "committed"
    """A commit call has returned; the rest is how long it took, in ns."""
    FAILED = "failed"
    """A commit call has failed; the rest is the error."""
    ASSIGNED = "assigned"
    """The group has rebalanced; the rest is the number of partitions."""
    WARNED = "warned"
    """The library has logged a line at WARNING or above."""


@dataclass(frozen=True, slots=True)
class Note:
    """One line of a journal. ``at`` is in seconds."""

    at: float
    what: What
    rest: str

    @classmethod
    def parse(cls, line: str) -> Note:
        at, what, rest = (*line.split(" ", 2), "")[:3]
        return cls(int(at) / _SECOND, What(what), rest)


def line_of(at_ns: int, what: What, rest: object) -> str:
    return f"{at_ns} {what} {' '.join(str(rest).split())}\n"


@dataclass(frozen=True, slots=True)
class Figures:
    """What one client met during a rolling restart. ``longest_pause_s`` is the longest time without a record of a
    partition to which records were written all the time."""

    longest_pause_s: float
    commits: int
    slowest_commit_s: float
    failed_commits: int
    rebalances: int
    warnings: int


def figures(notes: Iterable[Note], began: float, ended: float) -> Figures:
    """Returns the figures between two times. A partition whose records stopped before the end counts until the end."""
    found = [note for note in notes if began <= note.at <= ended]
    times: dict[str, list[float]] = defaultdict(lambda: [began])
    for note in found:
        if note.what is What.RECORD:
            times[note.rest].append(note.at)
    pauses = (b - a for each in times.values() for a, b in itertools.pairwise([*each, ended]))
    took = [int(note.rest) / _SECOND for note in found if note.what is What.COMMITTED]
    counts = Counter(note.what for note in found)
    return Figures(
        max(pauses, default=ended - began),
        len(took),
        max(took, default=0.0),
        counts[What.FAILED],
        counts[What.ASSIGNED],
        counts[What.WARNED],
    )
