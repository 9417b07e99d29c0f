"""Tools for a development machine, in a second distribution, ``kafka-coord-dev`` (docs/adr/0014-rooms.md).

:mod:`~kafka_coord.dev.cluster` starts real ZooKeeper and Kafka servers on loopback. :mod:`~kafka_coord.dev.demo` and
:mod:`~kafka_coord.dev.bench` run on them. :mod:`~kafka_coord.dev.commands` contains their ``kafka-coord`` commands.
"""
