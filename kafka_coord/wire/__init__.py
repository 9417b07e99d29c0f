"""Encodes and decodes Kafka's wire format: messages, headers, frames and record batches. Pure.

:mod:`~kafka_coord.wire.messages` has the messages by name, compiled from Kafka's own definitions (``definitions/``).
"""
