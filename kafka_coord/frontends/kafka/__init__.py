"""Kafka's own protocol: a listener in front of the broker beside this instance.

The listener answers requests about groups itself. It passes all others to the broker, and the answers back unchanged.
:mod:`~kafka_coord.frontends.kafka.listener` has the sockets, :mod:`~kafka_coord.frontends.kafka.connection` is one
client's connection, :mod:`~kafka_coord.frontends.kafka.group_requests` answers for client-assigned groups.
"""
