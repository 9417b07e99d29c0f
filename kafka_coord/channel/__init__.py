"""The channels between the coordinator and a consumer, over ZooKeeper and over a socket.

:mod:`kafka_coord.channel.operations` builds the multis of the ZooKeeper channel (docs/protocol.md), for both sides.
:mod:`kafka_coord.channel.zookeeper` and :mod:`kafka_coord.channel.link` are the consumer's side.
"""
