"""The library users import, as ``from kafka_coord import Consumer``.

:mod:`.consumer` is the surface; :mod:`.connector` and :mod:`.obedience` are the protocol, free of threads, Kafka and
clocks of their own; :mod:`.fetcher` is where the application's thread and the connector's meet.
"""
