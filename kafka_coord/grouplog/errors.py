"""What can go wrong with an append to the groups log."""

from __future__ import annotations

from kafka_coord.errors import KafkaCoordError


class TermEnded(KafkaCoordError):
    """This instance may write the partition no more; whether its last append was written is unknown."""


class TooLarge(KafkaCoordError):
    """So much does not go into one batch: nothing was written, and the term goes on."""
