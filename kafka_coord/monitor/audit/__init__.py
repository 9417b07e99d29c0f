"""Proof from ZooKeeper's own transaction log: every write in order, against the invariants of docs/design.md."""

from kafka_coord.monitor.audit.replay import audit
from kafka_coord.monitor.audit.report import AuditFinding, Report, Rule, clock_time
from kafka_coord.monitor.audit.story import Event, Selection, Story, parse_partition

__all__ = ["AuditFinding", "Event", "Report", "Rule", "Selection", "Story", "audit", "clock_time", "parse_partition"]
