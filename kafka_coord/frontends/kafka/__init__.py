"""Serves stock Kafka clients: a listener in front of the broker beside this instance.

The listener answers requests about groups itself. It passes all other requests to the broker, and passes back the
broker's answers, of which it changes only a few. :mod:`~kafka_coord.frontends.kafka.listener` has the sockets,
:mod:`~kafka_coord.frontends.kafka.connection` handles one client's connection, and
:mod:`~kafka_coord.frontends.kafka.group_requests` answers requests about groups.
"""
