"""Managed groups for stock Kafka clients that use KIP-848 (``group.protocol=consumer``) or the classic protocol."""
