"""``kafka-coord bench consume``: the speed of the consumer beside a bare librdkafka client."""
