"""``kafka-coord bench consume``: records through the consumer, beside a bare client of librdkafka."""
