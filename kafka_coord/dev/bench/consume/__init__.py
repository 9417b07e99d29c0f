"""``kafka-coord bench consume``: the speed of the consumer compared with a bare librdkafka client."""
