"""The demo: real flights, real brokers, real failures, and a verification that nothing was lost.

``scenario`` tells the story, ``journal`` is what each consumer writes down, ``verification`` compares that with the
input, ``timeline`` and ``report`` make pictures of it.
"""
