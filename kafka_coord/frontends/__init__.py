"""What takes members in from outside: consumers that do not speak ZooKeeper themselves.

:mod:`~kafka_coord.frontends.members` is what every such member needs, whatever it speaks;
:mod:`~kafka_coord.frontends.socket` is the socket channel's server.
"""
