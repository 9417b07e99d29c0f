"""Copies committed offsets between Kafka's ``__consumer_offsets`` and the groups that instances coordinate."""
