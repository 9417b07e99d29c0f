"""Managed groups for stock Kafka clients, which use KIP-848 (``group.protocol=consumer``) or the classic protocol."""
