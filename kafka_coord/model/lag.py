"""Computes a group's lag in one partition. Every lag that this project reports comes from :func:`lag_of`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from kafka_coord.model.partitions import TopicPartition

EARLIEST, LATEST = -2, -1
"""They stand for a timestamp in a request for offsets: the first offset of a log, and the next one at its end."""
LEADERLESS, UNKNOWN_PARTITION = "the partition has no live leader", "the brokers do not know the partition"


@dataclass(slots=True)
class ListedOffsets:
    """The offsets that the brokers told, and one reason for each partition of which they told none."""

    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)


class LogRange(NamedTuple):
    """The offsets that a partition's log holds: from ``start`` to just before ``end``. Retention and DeleteRecords move
    the start."""

    start: int
    end: int


class Lag(NamedTuple):
    """The records that a group has not read. ``lag`` records are still in the log. ``gone`` records are not: they were
    deleted before the group read them. Both count offsets."""

    lag: int
    gone: int


def lag_of(committed: int | None, log: LogRange | None) -> Lag | None:
    """Returns the lag after the ``committed`` offset, or ``None`` if nothing is committed or the log is unknown.

    If the log was truncated and the committed offset is beyond its end, both numbers are 0.
    """
    if committed is None or log is None:
        return None
    first = max(committed, min(log.start, log.end))
    return Lag(max(0, log.end - first), first - committed)


def gone_text(gone: int) -> str:
    """Returns ``1,200 unread records are gone``."""
    return f"{gone:,} unread record{' is' if gone == 1 else 's are'} gone"
