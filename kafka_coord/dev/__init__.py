"""Real ZooKeeper and Kafka on loopback, for laptops, the demo and tests.

:mod:`~kafka_coord.dev.cluster` is a whole cluster in one directory; :mod:`~kafka_coord.dev.zookeeper` and
:mod:`~kafka_coord.dev.kafka` are its servers one by one; :mod:`~kafka_coord.dev.topics` makes topics.
Nothing is imported here, so that a command which only asks for help need not load Kafka's client.
"""
