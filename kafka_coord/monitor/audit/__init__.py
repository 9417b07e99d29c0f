"""Proof from ZooKeeper's own transaction log: what was written, in its total order, against the design's invariants."""

from kafka_coord.monitor.audit.replay import audit
from kafka_coord.monitor.audit.report import Finding, Report, Rule, clock_time

__all__ = ["Finding", "Report", "Rule", "audit", "clock_time"]
