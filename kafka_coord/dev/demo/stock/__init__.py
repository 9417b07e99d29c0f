"""The demo with stock Kafka clients (``--clients kafka``): client-assigned groups, coordinated by the instances."""
