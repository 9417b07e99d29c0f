"""The error for malformed Kafka messages."""

from __future__ import annotations

from kafka_coord.errors import KafkaCoordError


class BadMessage(KafkaCoordError):
    """Bytes that are not the message they should be, or a value that a version of a message cannot carry."""
