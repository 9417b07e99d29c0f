"""The socket channel's server, which serves consumers without a ZooKeeper session (docs/socket-protocol.md).

:mod:`~kafka_coord.frontends.socket.gateway` answers frames on one thread, and
:mod:`~kafka_coord.frontends.socket.server` owns the sockets. To the coordinator, a socket consumer looks like any other
consumer: it has a registration, a channel and offsets.
"""
