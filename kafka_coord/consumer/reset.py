"""Where to begin without a usable offset: Kafka's ``auto.offset.reset``."""

from __future__ import annotations

from enum import StrEnum


class OffsetReset(StrEnum):
    EARLIEST = "earliest"
    """The oldest record there is."""
    LATEST = "latest"
    """What is produced from now on."""
    ERROR = "error"
    """Neither: the application gets :class:`~kafka_coord.errors.NoOffset` (Kafka's ``none``)."""
