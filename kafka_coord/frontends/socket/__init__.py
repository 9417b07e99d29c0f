"""The socket channel's server: what a consumer without ZooKeeper talks to (docs/socket-protocol.md).

:mod:`~kafka_coord.frontends.socket.gateway` answers frames and is stepped by one thread;
:mod:`~kafka_coord.frontends.socket.server` has the sockets and that thread. The coordinator sees a socket consumer as
it sees any other: a registration, a channel and offsets.
"""
