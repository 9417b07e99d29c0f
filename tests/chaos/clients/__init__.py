"""Chaos with stock Kafka clients, in groups that the instances serve (docs/kafka-clients.md)."""
