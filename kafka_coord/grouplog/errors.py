"""The errors raised by writes to the groups log."""

from __future__ import annotations

from kafka_coord.errors import KafkaCoordError


class TermEnded(KafkaCoordError):
    """This instance must no longer write to the partition, and it is unknown whether its last append was written."""


class TooLarge(KafkaCoordError):
    """The records do not fit in one batch. Nothing was written, and the term continues."""
