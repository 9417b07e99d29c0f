"""Benchmarks of kafka-coord on real servers, compared with alternatives.

All benchmarks share :mod:`~kafka_coord.dev.bench.report` (setup, spreads, targets) and
:mod:`~kafka_coord.dev.bench.usage` (CPU and memory of processes). Most benchmarks have their own package.
"""
