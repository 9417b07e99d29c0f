"""Restarts brokers, and brokers with their instances, one after the other, under stock clients of four libraries."""
