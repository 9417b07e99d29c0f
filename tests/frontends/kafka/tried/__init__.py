"""Third-party Kafka clients, each run through one scenario: ``scripts/clients``.

``members/`` has a small program for each client. All take ``BOOTSTRAP TOPIC GROUP NAME [STRATEGY [INSTANCE_ID]]`` and
write lines to standard output: ``assigned 0,1,2`` (all partitions that the member has now), ``record PARTITION
OFFSET``, and ``committed`` after each acknowledged commit. When their standard input ends, they leave and write
``closed``.
"""
