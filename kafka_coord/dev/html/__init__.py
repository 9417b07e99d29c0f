"""Self-contained HTML pages: the reports of the demo and of the benches."""
