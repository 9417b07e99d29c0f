"""Self-contained HTML pages for the reports of the demo and of the benchmarks."""
