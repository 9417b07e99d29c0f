"""What a connector has done so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Written by the connector's thread alone, read by any."""

    registrations: int = 0
    starts: int = 0
    stops: int = 0
    dropped_commands: int = 0
    """Commands for another incarnation."""
    malformed_commands: int = 0
    """Znodes in the channel that could not be obeyed."""
    commits: int = 0
    losses: int = 0
    """How often the membership was lost."""
    last_loss: str = ""
    """The reason of the last loss."""


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """What a consumer has done since it was made. ``last_loss`` is the reason of the last lost membership ("" for
    none)."""

    records: int
    registrations: int
    starts: int
    stops: int
    dropped_commands: int
    malformed_commands: int
    commits: int
    losses: int
    last_loss: str
