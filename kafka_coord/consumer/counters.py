"""The counters of a consumer and its connector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kafka_coord.model import TopicPartition


@dataclass(slots=True)
class ConsumerStats:
    """A consumer's counters since its creation. The connector's thread updates one instance, which any thread may read;
    its ``records`` stays 0. The application receives copies in which ``records`` is filled in."""

    records: int = 0
    registrations: int = 0
    starts: int = 0
    stops: int = 0
    dropped_commands: int = 0
    """The number of commands dropped because they were for an earlier incarnation."""
    malformed_commands: int = 0
    """The number of znodes in the channel that are not readable commands."""
    commits: int = 0
    waits: int = 0
    """How many times the consumer had to wait, because ZooKeeper or the coordinator did not answer."""
    unresolved: Mapping[TopicPartition, str] = field(default_factory=dict)
    """The held partitions that cannot be read now (no leader, no right, no answer), each with the reason."""
    losses: int = 0
    """How many times the membership was lost."""
    last_loss: str = ""
    """Why the membership was last lost, or "" if it never was."""
