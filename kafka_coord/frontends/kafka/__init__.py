"""Kafka's own protocol: a listener in front of the broker beside this instance.

What concerns groups is answered here, everything else goes to the broker and comes back byte for byte.
:mod:`~kafka_coord.frontends.kafka.listener` has the sockets, :mod:`~kafka_coord.frontends.kafka.connection` is one
client's connection, :mod:`~kafka_coord.frontends.kafka.coordinator` answers for client-assigned groups.
"""
