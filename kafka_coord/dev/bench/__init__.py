"""Benches: how fast parts of this are, on real servers, beside what one would use instead.

What all have in common is in :mod:`~kafka_coord.dev.bench.report` (setup, spreads, bars) and
:mod:`~kafka_coord.dev.bench.usage` (CPU and memory of processes); each bench is a package of its own.
"""
