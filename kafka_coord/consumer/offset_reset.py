"""Kafka's ``auto.offset.reset``, which decides where to start if there is no usable offset."""

from __future__ import annotations

from enum import StrEnum


class OffsetReset(StrEnum):
    EARLIEST = "earliest"
    """The oldest record in the log."""
    LATEST = "latest"
    """The end of the log, so that only records produced from now on are read."""
    ERROR = "error"
    """Nowhere: the application receives :class:`~kafka_coord.errors.NoOffset` (Kafka's ``none``)."""
