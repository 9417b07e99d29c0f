"""The library users import, as ``from kafka_coord import Consumer``.

:mod:`.consumer` is the surface. :mod:`.connector` and :mod:`.command_loop` are the protocol; they have no threads, no
Kafka and no clock of their own. The application's thread and the connector's meet in :mod:`.stream_partitions`.
"""
