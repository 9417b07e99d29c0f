"""A gateway's counters about its consumers. One thread writes them, and any thread may read them."""

from __future__ import annotations

from dataclasses import dataclass, field

from kafka_coord.model import Durations


@dataclass(slots=True)
class Statistics:
    """Counts since the process began."""

    registered: int = 0
    resumed: int = 0
    expired: int = 0
    refused: int = 0
    round_trips: Durations = field(default_factory=Durations)
    """The round-trip times of answered pings."""
