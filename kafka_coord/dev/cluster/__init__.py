"""Runs real ZooKeeper and Kafka on loopback, for laptops, the demo and tests.

:mod:`~kafka_coord.dev.cluster.cluster` is a whole cluster in one directory.
:mod:`~kafka_coord.dev.cluster.zookeeper` and :mod:`~kafka_coord.dev.cluster.kafka` are its individual servers.
:mod:`~kafka_coord.dev.cluster.topics` creates topics. This package imports nothing, so ``--help`` does not load Kafka's
client.
"""
