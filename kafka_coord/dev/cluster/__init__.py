"""Real ZooKeeper and Kafka on loopback, for laptops, the demo and tests.

:mod:`~kafka_coord.dev.cluster.cluster` is a whole cluster in one directory;
:mod:`~kafka_coord.dev.cluster.zookeeper` and :mod:`~kafka_coord.dev.cluster.kafka` are its servers one by one;
:mod:`~kafka_coord.dev.cluster.topics` makes topics. Nothing is imported here, so that ``--help`` need not load Kafka's
client.
"""
