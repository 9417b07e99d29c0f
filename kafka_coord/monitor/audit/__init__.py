"""Checks every write in ZooKeeper's transaction log against the invariants of docs/design.md."""

from kafka_coord.monitor.audit.event_history import Event, EventHistory, Selection, parse_partition
from kafka_coord.monitor.audit.replay import audit
from kafka_coord.monitor.audit.report import AuditFinding, Report, Rule, clock_time

__all__ = [
    "AuditFinding",
    "Event",
    "EventHistory",
    "Report",
    "Rule",
    "Selection",
    "audit",
    "clock_time",
    "parse_partition",
]
