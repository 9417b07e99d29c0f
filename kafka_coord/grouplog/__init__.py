"""The groups log: durable storage of client-assigned groups and their offsets.

It is a compacted Kafka topic. The instance whose broker leads a partition coordinates the partition's groups, one
*term* at a time. A term is claimed through ZooKeeper, and brokers fence it by producer id and epoch.
"""
