"""The demo: real flights, real brokers, real failures, and a verification that nothing was lost.

``scenario`` tells the story, ``journal`` is each consumer's record of its work, ``verification`` compares it with the
input, ``timeline`` and ``report`` make pictures of it.
"""
