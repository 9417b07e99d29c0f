"""The demo: real flights, real brokers, real failures, and a check that nothing was lost.

``scenario`` causes the events in the group. In a ``journal``, each consumer records its work, and ``verification``
compares the journals with the input. ``timeline`` and ``report`` draw charts.
"""
