"""The groups log: it stores client-assigned groups and their offsets durably, and decides who may write.

It is a compacted Kafka topic. The instance whose broker leads a partition coordinates the partition's groups, one
*term* at a time. A term is claimed through ZooKeeper and fenced by the brokers, by producer id and epoch.
"""
