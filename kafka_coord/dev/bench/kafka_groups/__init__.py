"""``kafka-coord bench groups``: compares the listener for stock Kafka clients with the broker's own coordinator."""
