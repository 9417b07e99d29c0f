"""Serves members without a ZooKeeper session: consumers over the socket channel, and stock Kafka clients.

:mod:`~kafka_coord.frontends.members` is shared by both, :mod:`~kafka_coord.frontends.socket` is the socket channel's
server, and :mod:`~kafka_coord.frontends.kafka` is the listener for Kafka clients.
"""
