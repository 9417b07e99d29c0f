"""Kafka clients of others, played through one scenario each: ``scripts/clients``.

``members/`` has a small program for each client. All take ``BOOTSTRAP TOPIC GROUP NAME [STRATEGY [INSTANCE_ID]]`` and
say on standard output, a line each: ``assigned 0,1,2`` (all that it has now), ``record PARTITION OFFSET``, and
``committed`` after each commit that was acknowledged. At the end of their standard input they leave and say ``closed``.
"""
