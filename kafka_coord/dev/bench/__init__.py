"""Benches: measure the speed of parts of kafka-coord on real servers, beside the alternatives.

All benches share :mod:`~kafka_coord.dev.bench.report` (setup, spreads, bars) and
:mod:`~kafka_coord.dev.bench.usage` (CPU and memory of processes). Each bench is a package of its own.
"""
