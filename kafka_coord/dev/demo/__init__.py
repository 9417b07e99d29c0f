"""The demo: real flights, real brokers, real failures, and a check that nothing was lost.

``scenario`` is what happens to the group, ``journal`` is each consumer's record of its work, ``verification`` compares
it with the input, ``timeline`` and ``report`` make pictures of it.
"""
