"""Serves stock Kafka clients: a listener in front of the broker beside this instance.

The listener answers requests about groups itself. It passes all other requests on to the broker and returns the
broker's responses, changing only a few of them. :mod:`~kafka_coord.frontends.kafka.listener` opens the sockets,
:mod:`~kafka_coord.frontends.kafka.connection` handles one client's connection, and
:mod:`~kafka_coord.frontends.kafka.group_requests` answers the requests about groups.
"""
