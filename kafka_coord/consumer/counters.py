"""The counters of a consumer and its connector."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """The connector's counters. Only the connector's thread writes them, but any thread may read them."""

    registrations: int = 0
    starts: int = 0
    stops: int = 0
    dropped_commands: int = 0
    """Number of commands for another incarnation."""
    malformed_commands: int = 0
    """Number of znodes in the channel that are not readable commands."""
    commits: int = 0
    losses: int = 0
    """Number of times the membership was lost."""
    last_loss: str = ""
    """The reason for the last loss."""


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """A consumer's counters since its creation. ``last_loss`` is why it last lost its membership, or "" if it never
    did."""

    records: int
    registrations: int
    starts: int
    stops: int
    dropped_commands: int
    malformed_commands: int
    commits: int
    losses: int
    last_loss: str
