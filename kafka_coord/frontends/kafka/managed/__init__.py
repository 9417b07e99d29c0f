"""Serves managed groups to stock Kafka clients, with KIP-848 (``group.protocol=consumer``) or the classic protocol."""
