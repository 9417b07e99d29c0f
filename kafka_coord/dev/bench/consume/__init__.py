"""``kafka-coord bench consume``: compares the consumer's speed with that of a bare librdkafka client."""
