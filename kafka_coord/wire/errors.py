"""The error for malformed Kafka messages."""

from __future__ import annotations

from kafka_coord.errors import KafkaCoordError


class BadMessage(KafkaCoordError):
    """The bytes are not the expected message, or this version of a message cannot carry a value."""
