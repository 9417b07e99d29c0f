"""How commands travel between the coordinator and a consumer.

:mod:`kafka_coord.channel.operations` are the multis of the ZooKeeper channel (docs/protocol.md) as pure values, for
whoever plays one of the two sides; :mod:`kafka_coord.channel.zookeeper` is the consumer's end of it.
"""
