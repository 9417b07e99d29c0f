"""The library that users import, as in ``from kafka_coord import Consumer``.

:mod:`.consumer` is the public API. :mod:`.connector` and :mod:`.command_loop` implement the protocol. They do not start
threads, read a clock of their own or use Kafka directly. The application's thread and the connector's thread share
:mod:`.stream_partitions`.
"""
