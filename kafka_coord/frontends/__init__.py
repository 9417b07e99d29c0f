"""Serves members without a ZooKeeper session: consumers over the socket channel, and stock Kafka clients.

:mod:`~kafka_coord.frontends.members` is what every such member needs, whatever it speaks;
:mod:`~kafka_coord.frontends.socket` is the socket channel's server.
"""
