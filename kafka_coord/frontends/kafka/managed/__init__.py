"""Managed groups for stock Kafka clients: KIP-848 (``group.protocol=consumer``), on the engine."""
