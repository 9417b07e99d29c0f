"""Encodes and decodes Kafka's wire format: messages, headers, frames and record batches. Does no I/O.

:mod:`~kafka_coord.wire.messages` provides the messages by name. It compiles them from Kafka's own definitions, which
are in ``definitions/``.
"""
