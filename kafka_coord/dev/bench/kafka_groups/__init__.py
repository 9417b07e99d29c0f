"""The bench of the listener for stock Kafka clients, beside the broker's own coordinator."""
