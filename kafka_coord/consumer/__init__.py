"""The library that users import, as in ``from kafka_coord import Consumer``.

:mod:`.consumer` is the public API. :mod:`.connector` and :mod:`.command_loop` implement the protocol. They start no
threads, have no clock of their own, and do not use Kafka directly. The application's thread and the connector's thread
share :mod:`.stream_partitions`.
"""
