"""The groups log: where client-assigned groups and their offsets are durable, and who may write there.

One compacted topic in Kafka itself; whoever's broker leads a partition coordinates the partition's groups, one *term*
at a time. A term is claimed through ZooKeeper and fenced by the brokers, by producer id and epoch.
"""
