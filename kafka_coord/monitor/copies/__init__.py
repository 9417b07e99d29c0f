"""Copies of committed offsets between Kafka's own ``__consumer_offsets`` and the groups that instances coordinate."""
