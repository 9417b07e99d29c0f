"""What a consumer without ZooKeeper talks to: it plays the ZooKeeper part for it (docs/socket-protocol.md).

:mod:`kafka_coord.gateway.gateway` is a state machine that one thread steps: frames in, frames and ZooKeeper writes out;
:mod:`kafka_coord.gateway.server` has the sockets and that thread. Planning, ledger and failover know nothing of it: for
them a socket consumer is a registration, a channel and offsets like any other's.
"""
