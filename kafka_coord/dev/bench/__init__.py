"""Benches: measure the speed of parts of kafka-coord on real servers, and compare it with the alternatives.

All benches share :mod:`~kafka_coord.dev.bench.report` (setup, spreads, bars) and
:mod:`~kafka_coord.dev.bench.usage` (CPU and memory of processes). Each bench is its own package.
"""
