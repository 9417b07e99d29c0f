"""The groups log: durable storage of client-assigned groups and their offsets.

The log is a compacted Kafka topic. The instance whose broker leads a partition coordinates that partition's groups, one
*term* at a time. It claims each term through ZooKeeper, and the brokers fence the term by its producer id and epoch.
"""
