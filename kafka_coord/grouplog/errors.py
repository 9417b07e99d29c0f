"""What can end a term of the groups log."""

from __future__ import annotations

from kafka_coord.errors import KafkaCoordError


class TermEnded(KafkaCoordError):
    """This instance may write the partition no more; whether its last append was written is unknown."""
