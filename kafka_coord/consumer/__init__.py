"""The library users import, as ``from kafka_coord import Consumer``.

:mod:`.consumer` is the public API. :mod:`.connector` and :mod:`.command_loop` are the protocol. They have no threads,
no Kafka and no clock of their own. The application's thread and the connector's thread share :mod:`.stream_partitions`.
"""
