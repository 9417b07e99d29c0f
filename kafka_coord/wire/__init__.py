"""Kafka's wire format: messages, headers, frames and record batches as values and bytes. Pure: nothing here does I/O.

:mod:`~kafka_coord.wire.messages` has the messages by name, compiled from Kafka's own definitions (``definitions/``).
"""
