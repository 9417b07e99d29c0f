"""The benchmark of the listener for stock Kafka clients, compared with the broker's own coordinator."""
