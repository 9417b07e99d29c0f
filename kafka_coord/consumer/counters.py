"""The counters of a consumer and its connector."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ConsumerStats:
    """A consumer's counters since its creation. The connector's thread writes its own copy, in which ``records`` is
    always 0. Any thread may read it. The application gets another copy."""

    records: int = 0
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
    """Why the membership was last lost, or "" if it never was."""
