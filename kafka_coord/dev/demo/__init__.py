"""The demo: real flights, real brokers, real failures, and a check that nothing was lost.

``scenario`` causes the events in the group. ``journal`` is each consumer's record of its work. ``verification``
compares the journals with the input. ``timeline`` and ``report`` draw charts.
"""
