"""Kafka's ``auto.offset.reset``: where to start if there is no usable offset."""

from __future__ import annotations

from enum import StrEnum


class OffsetReset(StrEnum):
    EARLIEST = "earliest"
    """The oldest record in the log."""
    LATEST = "latest"
    """The end of the log: only records produced from now on."""
    ERROR = "error"
    """No reset: raises :class:`~kafka_coord.errors.NoOffset` in the application (Kafka's ``none``)."""
